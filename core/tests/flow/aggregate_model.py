"""Aggregates as a runtime computes them, of rows that are cut in any way, and as Python does of all rows at once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from onefold.core.aggregates import Accumulation
from onefold.flow import Aggregate

Values = list[Any]


def accumulated(
    kind: pa.DataType, aggregate: Aggregate, batches: Iterable[Sequence[tuple[Any, Any]]]
) -> dict[Any, Any]:
    """The result of each key, of batches of (key, value), as a runtime computes it: each epoch is one batch."""
    return of_columns(pa.schema({"key": pa.string(), "value": kind}), aggregate, batches)


def of_columns(schema: pa.Schema, aggregate: Aggregate, batches: Iterable[Sequence[tuple[Any, ...]]]) -> dict[Any, Any]:
    """The same of rows (key, value, ...)."""
    made = Accumulation(schema, ("key",), [("result", aggregate)])
    kept = pa.RecordBatch.from_pylist([], made.state_schema)
    for rows in batches:
        kept = made.merged([kept, made.states(_batch(rows, schema))])
    return _results(made, kept)


def in_any_way(
    schema: pa.Schema, aggregate: Aggregate, batches: Sequence[Sequence[tuple[Any, ...]]], seed: int
) -> dict[Any, Any]:
    """The same of the rows in another order, cut otherwise, and merged in any order."""
    chance = random.Random(seed)
    rows = [row for batch in batches for row in batch]
    chance.shuffle(rows)
    made = Accumulation(schema, ("key",), [("result", aggregate)])
    states, at = [made.states(_batch([], schema))], 0
    while at < len(rows):
        end = at + chance.randint(1, 5)
        states.append(made.states(_batch(rows[at:end], schema)))
        at = end
    while len(states) > 1:
        chance.shuffle(states)
        states = [made.merged(states[:3]), *states[3:]]
    return _results(made, states[0])


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _results(made: Accumulation, kept: pa.RecordBatch) -> dict[Any, Any]:
    results = made.results(kept)
    results.validate(full=True)
    assert results.schema == made.result_schema
    keys, values = (column.to_pylist() for column in results.columns)
    assert len({*keys}) == len(keys)
    return dict(zip(keys, values, strict=True))


def expected(batches: Iterable[Sequence[tuple[Any, ...]]], model: Callable[[Values], Any]) -> dict[Any, Any]:
    groups: dict[Any, Values] = {}
    for rows in batches:
        for key, *values in rows:
            groups.setdefault(key, []).append(values[0] if len(values) == 1 else tuple(values))
    return {key: model(values) for key, values in groups.items()}


def batches_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[Any, Any]]]]:
    row = st.tuples(st.none() | st.sampled_from(["a", "b", ""]), st.none() | values)
    return st.lists(st.lists(row, max_size=8), max_size=4)


def there(values: Values) -> Values:
    return [value for value in values if value is not None]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or one == other
    return type(one) is type(other) and bool(one == other)


def all_same(found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    assert found.keys() == wanted.keys()
    assert [(key, found[key], wanted[key]) for key in wanted if not same(found[key], wanted[key])] == []
