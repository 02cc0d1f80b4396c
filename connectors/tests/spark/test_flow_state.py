"""State in Spark's state store: the same entries as in memory, whatever is done to them, over turns of groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from onefold.engine.state.sharded_tables import NestedTable
from onefold.spark.flows.state import SparkBlocks, SparkTable

SCHEMA = pa.schema({"n": pa.int64()})
KEYS = st.sampled_from([(1,), (2,), ("a", None)])
SUBS = st.sampled_from([(), (0,), (1,), (None,)])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.tuples(st.integers()), SUBS),
    st.tuples(st.just("delete"), KEYS, SUBS),
    st.tuples(st.just("clear"), KEYS),
)


class Stored:
    """What Spark's MapState does."""

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return self.entries.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.entries[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802
        self.entries.pop(key, None)

    def exists(self) -> bool:
        return bool(self.entries)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter([*self.entries.items()])


@given(st.lists(st.lists(OPERATIONS)))
def test_a_table_has_what_a_table_in_memory_has(turns: list[list[Any]]) -> None:
    stored: Any = Stored()
    table, expected = SparkTable(stored), NestedTable()
    for operations in turns:
        table.begin()
        for name, *arguments in operations:
            getattr(table, name)(*arguments)
            getattr(expected, name)(*arguments)
        table.store()
        assert all([*table.items(key)] == [*expected.items(key)] for key in ((1,), (2,), ("a", None)))
        table.begin()
        assert sorted(table.scan(), key=repr) == sorted(expected.scan(), key=repr)
        assert all(table.last(key) == expected.last(key) for key in ((1,), (2,), ("a", None)))


PLACES = st.tuples(st.integers(-1, 1), st.integers(0, 2))
BLOCKS = st.lists(st.lists(st.tuples(PLACES, st.none() | st.integers()), max_size=6), max_size=6)


@given(BLOCKS)
def test_blocks_are_those_that_were_put_and_the_map_has_nothing_else(turns: list[list[Any]]) -> None:
    stored: Any = Stored()
    table, expected = SparkBlocks(stored, SCHEMA), dict[Any, Any]()
    for changes in turns:
        table.begin()
        for at, number in changes:
            if number is not None:
                table.put(at, pa.RecordBatch.from_pylist([{"n": number % 100}], SCHEMA))
                expected[at] = [{"n": number % 100}]
            elif at in expected:
                table.delete(at)
                del expected[at]
        assert {at: table.get(at).to_pylist() for at in table.ids()} == expected
        table.store()
        table.begin()
        assert {at: table.get(at).to_pylist() for at in table.ids()} == expected
        assert table.ids() == sorted(expected)
        assert len(stored.entries) == len(expected) + bool(expected)
