"""Entries in buckets of Spark's: the same as in a dict, in few of Spark's entries, whatever their sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from test_flow_state import Stored

from onefold.core.errors import CheckpointMismatch
from onefold.engine.state.codec import encode
from onefold.spark.flows import buckets
from onefold.spark.flows.buckets import BUCKET_BYTES_MAX, Buckets, entries_of


class Counted(Stored):
    """How many round trips there were, and how many bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = self.bytes = 0

    def getValue(self, key: Any) -> Any:  # noqa: N802
        self.trips += 1
        return super().getValue(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.trips, self.bytes = self.trips + 1, self.bytes + len(value[0])
        super().updateValue(key, value)


def held(stored: Stored) -> dict[bytes, bytes]:
    pairs = [entry for (at,), (content,) in stored.entries.items() for entry in entries_of(at, content)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, 0, 5, 300, 3000, 20_000])), max_size=20), max_size=8
)


@given(CHANGES)
def test_they_have_what_a_dict_has(turns: list[list[tuple[int, int | None]]]) -> None:
    stored: Any = Stored()
    table, expected = Buckets(stored), dict[bytes, bytes]()
    for changes in turns:
        table.begin()
        for number, size in changes:
            key = encode((number,))
            if size is None:
                table.delete(key)
                expected.pop(key, None)
            else:
                expected[key] = bytes(size)
                table.put(key, bytes(size))
        table.store()
        assert held(stored) == dict(table.items()) == expected
        table.begin()
        assert all(table.get(encode((number,))) == expected.get(encode((number,))) for number in range(31))
        assert bool(stored.entries) == bool(expected), "of a group without entries nothing is kept"


@pytest.mark.parametrize(("entries", "size"), [(20_000, 40), (300, 3000), (200, 50_000)])
def test_there_are_no_more_and_no_larger_buckets_than_need_be(entries: int, size: int) -> None:
    stored: Any = Counted()
    table = Buckets(stored)
    for _ in range(4):  # turns: what comes at once is split at once
        for number in range(entries):
            table.put(encode((number,)), bytes(size))
        table.store()
        table.begin()
    contents = [len(content) for (at,), (content,) in stored.entries.items() if at != encode("buckets")]
    assert max(contents) < 2 * max(BUCKET_BYTES_MAX, 4 * size)
    assert len(contents) <= 4 * (1 + entries * (size + 14) // BUCKET_BYTES_MAX)
    (count,) = (buckets.decode(content) for (at,), (content,) in stored.entries.items() if at == encode("buckets"))
    assert count <= 4 * (1 + min(entries, entries * (size + 14) // BUCKET_BYTES_MAX))


def test_a_turn_of_many_keys_has_few_round_trips_and_one_of_few_writes_little() -> None:
    stored: Any = Counted()
    table, chance = Buckets(stored), random.Random(1)
    for number in range(10_000):
        table.put(encode((number,)), bytes(20))
    table.store()
    for keys, trips_max, bytes_max in ((5_000, 700, 1_500_000), (3, 12, 3 * 2 * BUCKET_BYTES_MAX)):
        stored.trips = stored.bytes = 0
        table.begin()
        for number in chance.sample(range(10_000), keys):
            assert table.get(encode((number,))) == bytes(20)
            table.put(encode((number,)), bytes(20))
        table.store()
        assert stored.trips <= trips_max
        assert stored.bytes <= bytes_max


def test_buckets_go_as_their_entries_go() -> None:
    stored: Any = Stored()
    table = Buckets(stored)
    for number in range(5_000):
        table.put(encode((number,)), bytes(30))
    table.store()
    buckets_before = len(stored.entries)
    for first in range(0, 5_000, 500):
        table.begin()
        for number in range(first, first + 500):
            table.delete(encode((number,)))
        table.store()
        assert len(held(stored)) == 5_000 - first - 500
    assert buckets_before > 40 and stored.entries == {}


def test_a_state_with_an_entry_for_each_key_is_refused() -> None:
    stored: Any = Stored()
    stored.updateValue((encode((1,)),), (encode({(): (2,)}),))
    with raises(CheckpointMismatch, "state-layout", "savepoint"):
        Buckets(stored).get(encode((1,)))
    with raises(CheckpointMismatch, "state-layout"):
        held(stored)  # as a savepoint reads them
