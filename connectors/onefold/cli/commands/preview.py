"""`onefold preview`."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from onefold.cli.console import AsJson, Named, say, shown, table_console
from onefold.core.values.json_encoder import nullable_texts, objects

if TYPE_CHECKING:
    from onefold.operate.preview import Preview, SinkPreview

_CELL_MAX = 60
_WIDTH_MAX = 100_000
_ACROSS_MAX = 12  # columns: more are shown below each other


def preview(
    named: Named,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="So many records of each source, at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Read the first records of a pipeline's sources, and show what each sink would get of them. Writes nothing."""
    from onefold.operate.preview import preview
    from onefold.pipeline import read

    with redirect_stdout(sys.stderr):  # what the pipeline's own code prints is no part of the result
        found = preview(read(named), limit)
    if as_json:
        typer.echo(_json(found))
    else:
        _print(found)


def _print(found: Preview) -> None:
    for source, count in found.read.items():
        say(f"{source}: {count:,} record{'' if count == 1 else 's'} read")
    for bad in found.bad.to_pylist():
        place = f"{bad['source_topic']}/{bad['source_partition']} at {bad['source_offset']}"
        say(f"  bad: {place}: {bad['reason']}")
    for sink in found.sinks:
        say("")
        say(_title(sink))
        if sink.rows.num_rows:
            _print_rows(sink.rows)


def _print_rows(rows: pa.Table) -> None:
    """A line for each; or where columns are many, or wider than the terminal, below each other."""
    names, cells = [*map(shown, rows.schema.names)], [*zip(*map(_cells, rows.columns), strict=True)]
    console, table = table_console(), Table(*names, box=None)
    for row in cells:
        table.add_row(*row)
    if len(names) <= _ACROSS_MAX and _width(table, console) <= console.width:
        console.print(table)
        return
    for number, row in enumerate(cells, 1):
        say(f"row {number}")
        for name, cell in zip(names, row, strict=True):
            console.print(f"  {name}: {cell}", highlight=False, soft_wrap=True)


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(width=_WIDTH_MAX)).maximum


def _title(sink: SinkPreview) -> str:
    rows = f"{sink.name} would get {sink.rows.num_rows:,} row{'' if sink.rows.num_rows == 1 else 's'}"
    if not sink.merged:
        return rows
    return f"{rows}, {sink.merged:,} of which have the {', '.join(sink.key)} of another one, and are merged with it"


def _cells(column: pa.ChunkedArray) -> list[str]:
    """Each value for a terminal. NULL is no text: one of these letters is in quotes."""
    array = column.combine_chunks()
    texts = array if pa.types.is_string(array.type) else nullable_texts(array, "quote")
    return ["[dim]NULL[/]" if text is None else _cell(text) for text in texts.to_pylist()]


def _cell(text: str) -> str:
    if text == "NULL":
        return '"NULL"'
    return shown(text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}...")


def _json(found: Preview) -> str:
    """Rows are written as texts: a decimal of 38 digits is a number in JSON, and none in Python's."""
    sinks = {
        sink.name: f'{{"key": {json.dumps(sink.key)}, "merged": {sink.merged}, "rows": {_rows(sink.rows)}}}'
        for sink in found.sinks
    }
    told = ",\n".join(f"{json.dumps(name)}: {text}" for name, text in sinks.items())
    about = f'"pipeline": {json.dumps(found.pipeline)}, "read": {json.dumps(found.read)}'
    return f'{{{about}, "bad": {_rows(found.bad)},\n"sinks": {{{told}}}}}'


def _rows(table: pa.Table) -> str:
    columns = [column.combine_chunks() for column in table.columns]
    rows = ",\n".join(objects(table.schema.names, columns, "quote").to_pylist())
    return f"[{rows}]"
