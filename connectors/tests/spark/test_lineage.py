"""Which epoch a record of the source was in, by the store's history."""

from __future__ import annotations

import pickle

import pyarrow as pa

from onefold.core import EpochRecord, EpochState, Positions, Range
from onefold.core.contract import MOVED
from onefold.core.invariants import ADOPTED
from onefold.spark.verify.origin import Lineage


def epoch(
    number: int, start: dict[str, int], end: dict[str, int], *, state: str = "complete", of: str = "q"
) -> EpochRecord:
    return EpochRecord(
        pipeline="p",
        epoch=number,
        generation=1,
        state=EpochState(state),
        range=Range(Positions.of(start), Positions.of(end)),
        timestamp_ms=number,
        query_id=of,
        batch_id=number,
        fingerprint="",
        sinks=("s",),
    )


def epochs(history: list[EpochRecord], *places: tuple[str, int, int]) -> list[int]:
    topics, partitions, offsets = zip(*places, strict=True)
    lineage: Lineage = pickle.loads(pickle.dumps(Lineage.of(history)))
    found = lineage.epochs(pa.array(topics), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64()))
    numbers: list[int] = found.to_pylist()
    return numbers


def test_each_record_is_of_the_epoch_whose_range_has_it_and_older_ones_are_of_a_forgotten_one() -> None:
    history = [
        epoch(3, {"a/0": 5, "a/1": 0}, {"a/0": 10, "a/1": 0}),
        epoch(4, {"a/0": 10, "a/1": 0}, {"a/0": 99, "a/1": 99}, state="given_up"),
        epoch(5, {"a/0": 10, "a/1": 0}, {"a/0": 10, "a/1": 4, "b/0": 2}),
        epoch(6, {"a/0": 10, "a/1": 4, "b/0": 2}, {"a/0": 12, "a/1": 4, "b/0": 2}),
    ]
    places = [("a", 0, 4), ("a", 0, 5), ("a", 0, 9), ("a", 0, 10), ("a", 0, 12), ("a", 1, 0), ("b", 0, 1), ("c", 0, 0)]
    assert epochs(history, *places) == [0, 3, 3, 6, 0, 5, 5, 0]


def test_what_another_store_wrote_before_its_ledger_was_adopted_is_forgotten() -> None:
    history = [
        epoch(1, {"a/0": 0}, {"a/0": 5}),
        epoch(9, {"a/0": 20}, {"a/0": 20}, of=ADOPTED),
        epoch(10, {"a/0": 20}, {"a/0": 25}),
    ]
    assert epochs(history, ("a", 0, 3), ("a", 0, 15), ("a", 0, 20), ("a", 0, 24)) == [0, 0, 10, 10]


def test_a_record_that_came_again_is_of_its_last_epoch_and_one_that_was_passed_over_of_none() -> None:
    history = [
        epoch(1, {"a/0": 0}, {"a/0": 10}),
        epoch(2, {"a/0": 10}, {"a/0": 15}, of=MOVED),
        epoch(3, {"a/0": 15}, {"a/0": 20}),
        epoch(4, {"a/0": 20}, {"a/0": 3}, of=MOVED),
        epoch(5, {"a/0": 3}, {"a/0": 5}),
        epoch(6, {"a/0": 5}, {"a/0": 7}),
    ]
    places = [("a", 0, offset) for offset in (2, 3, 4, 5, 6, 7, 9, 10, 14, 15, 19, 20)]
    assert epochs(history, *places) == [1, 5, 5, 6, 6, 1, 1, 0, 0, 3, 3, 0]
