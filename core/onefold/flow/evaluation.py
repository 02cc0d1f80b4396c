"""Runs the operators without state on record batches: for every runtime the same.

Expressions run in Acero, without threads of its own: 40 to 100 microseconds a batch and 1 to 6 nanoseconds a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import require
from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.batches import empty_batch
from onefold.core.values.names import near, told_columns
from onefold.core.values.plain import plain
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Batches, Filtering, FlatMapping, MappingBatches, Selecting, Uniting
from onefold.flow.processing.rows import Output, RowCollector, Side, dicts_of, note, undeclared

Evaluation = Callable[[pa.RecordBatch], Iterator[Output]]

_NO_MATCH = re.compile(r"No match for FieldRef\.(?:Nested\()?(?:FieldRef\.)?Name\((.*?)\)")


def evaluation(node: Node) -> Evaluation:
    """What a node without state makes of a batch: batches of its outputs, none of them empty.

    Raises BadRecord where an expression fails on a row, ConfigError where a function gives other columns than it was
    declared with. What a user's function raises comes through.
    """
    match node.operator:
        case Filtering(condition, text):
            return lambda batch: _filtered(node, {text or str(condition): condition}, batch)
        case Selecting():
            return _selection(node, node.operator)
        case MappingBatches(function):
            return lambda batch: _mapped(node, function, batch)
        case FlatMapping(function):
            return lambda batch: _flat_mapped(node, function, batch)
        case Uniting():
            return lambda batch: _unless_empty(None, shaped(node, None, batch))
        case operator:
            require(False, f"{type(operator).__name__} keeps state, reads or writes: no evaluation of a batch alone")
            raise AssertionError


def computed(batch: pa.RecordBatch, expressions: Sequence[pc.Expression]) -> list[pa.Array]:
    """The values of expressions on each row. Raises `pa.ArrowException`."""
    from pyarrow import acero  # which imports pandas, where that is installed: half a second

    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    project = acero.ProjectNodeOptions(list(expressions), [str(number) for number in range(len(expressions))])
    plan = acero.Declaration.from_sequence(
        [acero.Declaration("table_source", source), acero.Declaration("project", project)]
    )
    return [column.combine_chunks() for column in plan.to_table(use_threads=False).columns]


def column_of(expression: pc.Expression) -> str | None:
    """The column that an expression takes as it is; None where it computes something."""
    name = str(expression)
    return name if expression.equals(pc.field(name)) else None


def expression_types(schema: pa.Schema, expressions: Sequence[pc.Expression], label: str) -> list[pa.DataType]:
    """The types of expressions on rows of a schema. Raises ConfigError where one cannot be computed."""
    found = []
    nothing = empty_batch(schema)
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    for expression in expressions:
        try:
            found += computed(nothing, [expression])
        except pa.ArrowException as error:
            raise _refused(schema, expression, label, str(error)) from error
        try:
            computed(row, [expression])
        except pa.ArrowException as error:
            if "non-scalar" in str(error):  # an aggregate, which shows only where there is a row
                raise _refused(schema, expression, label, str(error)) from error
    return [array.type for array in found]


def given_by(name: str, function: Batches, batch: pa.RecordBatch) -> Iterator[Output]:
    """The batches that a function of `map_batches` gives, as they are."""
    given = function(batch)
    is_one = isinstance(given, pa.RecordBatch | pa.Table | Side) or not isinstance(given, Iterable)
    for each in (given,) if is_one else given:
        output, value = (each.name, each.value) if isinstance(each, Side) else (None, each)
        if isinstance(value, pa.Table):
            yield from ((output, part) for part in value.to_batches() or [empty_batch(value.schema)])
        elif isinstance(value, pa.RecordBatch):
            yield output, value
        else:
            raise ConfigError(
                "function-schema",
                f"{name}: the function gives {type(value).__name__}. Let it return or yield pyarrow.RecordBatch",
            )


def shaped(node: Node, output: str | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch under an output's own schema, with its nullability and metadata. Raises ConfigError for others,
    BadRecord for a null where the schema says NOT NULL."""
    outputs = node.outputs()
    if output not in outputs:
        raise undeclared(node.name, str(output), [name for name, _ in node.sides])
    schema = outputs[output]
    if not batch.schema.equals(schema, check_metadata=True):
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise ConfigError(
                "function-schema",
                f"{node.name} gives rows of ({told_columns(batch.schema)}), and was declared with"
                f" ({told_columns(schema)}). Let the function give these, or name the others in schema=",
            )
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise BadRecord(
                "function-value",
                f"{node.name} gives null in the column {field.name!r}, which is NOT NULL. Give a value there, or name"
                " another type in schema=",
            )
    return batch


def _refused(schema: pa.Schema, expression: pc.Expression, label: str, reason: str) -> ConfigError:
    if missing := _NO_MATCH.search(reason):
        name = missing[1]
        told = near(name, schema.names) or f"; there are {', '.join(schema.names)}"
        return ConfigError("no-such-column", f"{label} {expression}: there is no column {name!r}{told}")
    hint = (
        "aggregates belong to key_by(...).aggregate(...)"
        if "non-scalar" in reason
        else "cast its columns to types that go together, pc.field(...).cast(...)"
    )
    if "Precision is not great enough" in reason:
        hint = "of a decimal column and a number, give the number as a decimal.Decimal: pc.field(...) > Decimal(0)"
    return ConfigError("expression-type", f"{label} {expression} cannot be computed: {reason.strip()}. Mend it: {hint}")


def _filtered(node: Node, condition: Mapping[str, pc.Expression], batch: pa.RecordBatch) -> Iterator[Output]:
    (mask,) = _of_records(node, batch, condition)
    kept = mask.true_count
    if kept == batch.num_rows:
        yield from _unless_empty(None, batch)
    elif kept:
        yield None, batch.filter(mask)


def _selection(node: Node, operator: Selecting) -> Evaluation:
    """Columns that are taken as they are cost nothing."""
    schema = node.outputs()[None]

    taken = [column_of(expression) for _, expression in operator.columns]
    expressions = {
        f"{name} = {operator.texts.get(name, expression)}": expression
        for (name, expression), column in zip(operator.columns, taken, strict=True)
        if column is None
    }

    def select(batch: pa.RecordBatch) -> Iterator[Output]:
        made = iter(_of_records(node, batch, expressions) if expressions else ())
        arrays = [next(made) if name is None else batch.column(name) for name in taken]
        yield from _unless_empty(None, pa.RecordBatch.from_arrays(arrays, schema=schema))

    return select


def _of_records(node: Node, batch: pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> list[pa.Array]:
    try:
        return computed(batch, [*expressions.values()])
    except pa.ArrowException as error:
        text, row = _first_failing(batch, expressions)
        raise BadRecord(
            "expression-fails",
            f"{node.name}: {text} cannot be computed of {row}: {error}. Filter such records before it, or cast its"
            " columns to types that hold the result",
        ) from error


def _first_failing(batch: pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> tuple[str, str]:
    """The expression that fails, and the first row for which it does, found by halves."""

    def fails(expression: pc.Expression, rows: pa.RecordBatch) -> bool:
        try:
            computed(rows, [expression])
        except pa.ArrowException:
            return True
        return False

    failing = (text for text, expression in expressions.items() if fails(expression, batch))
    text = next(failing, next(iter(expressions)))  # memory may be there by now
    while batch.num_rows > 1:
        half = batch.slice(0, batch.num_rows // 2)
        batch = half if fails(expressions[text], half) else batch.slice(half.num_rows)
    try:
        (row,) = dicts_of(batch)
    except BadRecord:  # a value that Python has none for
        return text, "a row"
    named = {name: value for name, value in row.items() if name in text}
    return text, f"the row {plain(str(named or row), 200)}"


def _mapped(node: Node, function: Batches, batch: pa.RecordBatch) -> Iterator[Output]:
    for output, given in given_by(node.name, function, batch):
        yield from _unless_empty(output, shaped(node, output, given))


def _flat_mapped(node: Node, function: Callable[..., Iterable[Any] | None], batch: pa.RecordBatch) -> Iterator[Output]:
    collector = RowCollector(node.name, node.outputs())
    for row in dicts_of(batch):
        try:
            given = function(row)
            rows = iter(() if given is None else given)
            while collector.fill(rows):
                yield from collector.take()
        except Exception as error:
            note(error, "row", row)
            raise
    yield from collector.take()


def _unless_empty(output: str | None, batch: pa.RecordBatch) -> Iterator[Output]:
    if batch.num_rows:
        yield output, batch
