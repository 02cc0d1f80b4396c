"""`check_aggregator`: what the author of an aggregate runs."""

from __future__ import annotations

import math
import pickle
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from onefold.core.aggregates import Accumulation, Aggregator
from onefold.core.testing.conformance.promises import Book, ConformanceReport, Promise
from onefold.core.testing.conformance.report import passed
from onefold.core.values.ddl import schema_of
from onefold.core.values.exact import exact_array

ROWS_MAX = 12
NEAR = 1e-9  # of floats, whose sums depend on the order


def check_aggregator(
    aggregator: Aggregator, schema: str, rows: Sequence[tuple[Any, ...]], *, rounds: int = 200, seed: int = 0
) -> ConformanceReport:
    """Hold an aggregator to giving one result however its rows are cut into batches, and its states are merged.

    - `schema` has the columns that it is of: `"odds double"`.
    - `rows` are some rows of them, tuples as wide, with all that may come: null, too. Of these, rows are drawn by
      chance, `rounds` times, and each time cut in two ways. Their order stays.

    Floats may differ by a billionth. Raises BrokenPromise, an AssertionError, where two results differ, or where a
    state or a result is none of its type.
    """
    begun_s, book, chance = time.monotonic(), Book(), random.Random(seed)
    with book.holding(Promise.AGGREGATOR_PICKLES, "pickle"):
        aggregator = pickle.loads(pickle.dumps(aggregator))
    columns = schema_of(schema)
    given = pa.schema([pa.field("key", pa.string()), *columns])
    made = Accumulation(given, ("key",), [("result", aggregator.of(*columns.names))])
    for _ in range(rounds):
        drawn = [(chance.choice("ab"), *chance.choice(rows)) for _ in range(chance.randint(1, ROWS_MAX))]
        cuts: list[list[pa.RecordBatch]] = [_cut(drawn, given, chance) for _ in range(2)]
        with book.holding(Promise.AGGREGATOR_CUTS, "add, merge") as held:
            one, other = (_results(made, cut, chance) for cut in cuts)
            told = " and ".join(str([[*batch.to_pydict().values()] for batch in cut]) for cut in cuts)
            held.expect(_is_near(one, other), f"one result of each key of the batches {told}", f"{one} and {other}")
    due = {promise for promise in Promise if promise.name.startswith("AGGREGATOR_")}
    return passed(type(aggregator).__name__, book, due, time.monotonic() - begun_s)


def _cut(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, chance: random.Random) -> list[pa.RecordBatch]:
    at = sorted({0, len(rows), *(chance.randint(0, len(rows)) for _ in range(chance.randint(0, 4)))})
    parts = [[*zip(*rows[start:end], strict=True)] for start, end in pairwise(at)]
    return [pa.record_batch([*map(exact_array, part, schema.types)], schema=schema) for part in parts]


def _results(made: Accumulation, cut: Sequence[pa.RecordBatch], chance: random.Random) -> dict[str, Any]:
    states = [*map(made.states, cut)]
    while len(states) > 1:
        at = chance.randint(0, len(states) - 2)
        states[at : at + 2] = [made.merged(states[at : at + 2])]
    results = made.results(states[0])
    return dict(zip(*(column.to_pylist() for column in results.columns), strict=True))


def _is_near(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=NEAR) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_near(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_near, one, other))
    return bool(one == other)
