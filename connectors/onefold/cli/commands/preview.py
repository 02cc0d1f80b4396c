"""`onefold preview`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.table import Table

from onefold.cli.console import AsJson, Named, print_json, say, shown, table_console
from onefold.core.values.json_encoder import nullable_texts, objects

if TYPE_CHECKING:
    from onefold.operate.preview import Preview, SinkPreview

__all__ = ["preview"]

_CELL_MAX = 60


def preview(
    named: Named,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="So many records of each source, at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Read the first records of a pipeline's sources, and show what each sink would get of them. Writes nothing."""
    from onefold.operate.preview import preview
    from onefold.pipeline import read

    found = preview(read(named), limit)
    if as_json:
        print_json(_as_dict(found))
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
            table = Table(*map(shown, sink.rows.schema.names), box=None)
            for row in zip(*map(_cells, sink.rows.columns), strict=True):
                table.add_row(*row)
            table_console().print(table)


def _title(sink: SinkPreview) -> str:
    rows = f"{sink.name} would get {sink.rows.num_rows:,} row{'' if sink.rows.num_rows == 1 else 's'}"
    if not sink.merged:
        return rows
    return f"{rows}, {sink.merged:,} of which have the {', '.join(sink.key)} of another one, and are merged with it"


def _cells(column: pa.ChunkedArray) -> list[str]:
    array = column.combine_chunks()
    texts = array if pa.types.is_string(array.type) else nullable_texts(array, "quote")
    cells = pc.fill_null(texts, "null").to_pylist()
    return [shown(text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}...") for text in cells]


def _as_dict(found: Preview) -> dict[str, Any]:
    return {
        "pipeline": found.pipeline,
        "read": dict(found.read),
        "bad": _rows(found.bad),
        "sinks": {
            sink.name: {"rows": _rows(sink.rows), "key": list(sink.key), "merged": sink.merged} for sink in found.sinks
        },
    }


def _rows(table: pa.Table) -> list[Any]:
    columns = [column.combine_chunks() for column in table.columns]
    return [json.loads(row) for row in objects(table.schema.names, columns, "quote").to_pylist()]
