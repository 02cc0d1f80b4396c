"""Inputs that are taken in a fixed order, and cut at fixed places."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import OutOfResources
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.core.values.exact.row_sizes import row_bytes
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow import cutting, inbound
from onefold.engine.dataflow.cutting import Cutter
from onefold.engine.dataflow.inbound import InOrder, SpillQueue
from onefold.engine.dataflow.items import Barrier, Item


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], names=["n"])


def epoch(inbound: InOrder) -> list[tuple[int, list[int]]]:
    """What is taken until nothing is there, or the epoch is complete."""
    found = []
    while inbound.has_ready and inbound.barrier is None:
        if (taken := inbound.take()) is not None:
            channel, rows = taken
            assert isinstance(rows, pa.RecordBatch)
            found.append((channel, rows["n"].to_pylist()))
    return found


@pytest.fixture(autouse=True)
def _small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "CUT_ROWS", 3)


def test_every_arrival_of_the_same_items_is_taken_alike() -> None:
    """All interleavings of two channels, each of two epochs, whatever was taken meanwhile."""
    items: list[list[Item]] = [
        [batch(1, 2), batch(3, 4), Barrier(1), batch(5), Barrier(2)],
        [batch(7), batch(8, 9, 10, 11, 12), Barrier(1), Barrier(2)],
    ]
    seen = set()
    for order in _orders(5, 4):
        inbound, queues, found = InOrder([1, 0]), [iter(of) for of in items], []
        for channel in order:
            inbound.put(channel, next(queues[channel]))
            found += epoch(inbound)
            if inbound.barrier is not None:
                found.append((-1, []))
                inbound.reopen()
                found += epoch(inbound)
        if inbound.barrier is not None:
            found.append((-1, []))
            inbound.reopen()
        seen.add(str(found))
    assert seen == {str([(1, [7, 8, 9]), (1, [10, 11, 12]), (0, [1, 2, 3]), (0, [4]), (-1, []), (0, [5]), (-1, [])])}


def _orders(zeros: int, ones: int) -> list[list[int]]:
    if not zeros or not ones:
        return [[0] * zeros + [1] * ones]
    return [[0, *rest] for rest in _orders(zeros - 1, ones)] + [[1, *rest] for rest in _orders(zeros, ones - 1)]


def test_a_channel_whose_turn_is_to_come_never_holds_its_sender_up() -> None:
    inbound = InOrder([0, 1])
    inbound.put(0, batch(1))
    inbound.put(1, batch(2, 3))
    assert (inbound.queued_bytes(0), inbound.queued_bytes(1)) == (8, 0)
    inbound.put(0, Barrier(1))
    inbound.put(0, batch(4))
    epoch(inbound)
    assert inbound.queued_bytes(0) == 8  # of the next epoch: held back as everywhere


def test_what_waits_beyond_the_memory_comes_back_from_the_file_as_it_was() -> None:
    there, chance = SpillQueue(memory_max=200), random.Random(7)
    words = pa.array(["a", None, "bc"]).dictionary_encode()
    items: list[Item] = [
        Barrier(n)
        if n % 7 == 6
        else pa.record_batch({"n": pa.array([n] * (n % 5), pa.int64()), "w": words[: n % 5]})
        if n % 5 <= 3
        else pa.record_batch({"n": pa.array([n], pa.int64()), "w": words[:1]})
        for n in range(60)
    ]
    left, came = list(items), []
    while left or len(there):
        if left and (not len(there) or chance.random() < 0.6):
            there.append(left.pop(0))
        else:
            came.append(there.popleft())
    assert came == items


def test_a_disk_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inbound.os, "pwrite", full)
    there = SpillQueue(memory_max=10)
    with raises(OutOfResources, "exchange-disk-full"):
        there.append(batch(*range(100)))


@pytest.mark.parametrize("cut", [1, 2, 5, 50])
def test_parts_of_a_source_are_cut_alike_and_bad_records_come_last(cut: int) -> None:
    rows, bad = batch(*range(20)), pa.RecordBatch.from_pylist([{} for _ in range(7)], BAD_COLUMNS)
    cutter, found = Cutter(), []
    for at in range(0, 20, cut):
        cutter.put(Part(rows.slice(at, cut), bad.slice(at, cut)))
        while (part := cutter.take()) is not None:
            found.append(part)
    while (part := cutter.rest()) is not None:
        found.append(part)
    sizes = [(part.rows.num_rows, part.bad.num_rows) for part in found if isinstance(part, Part)]
    assert sizes == [(3, 0)] * 6 + [(2, 0), (0, 3), (0, 3), (0, 1)]


@pytest.mark.parametrize("kind", ["string", "nested", "encoded"])
def test_large_rows_are_cut_by_their_size_alike_however_they_come(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "CUT_ROWS", 12)
    monkeypatch.setattr(cutting, "CUT_BYTES", 1000)
    chance, found = random.Random(5), set()
    texts = [None if n % 5 == 0 else "x" * chance.choice([1, 150, 400]) for n in range(200)]
    values: pa.Array = pa.array(texts)
    if kind == "nested":
        of = pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.int16()))}))
        values = pa.array([None if t is None else [{"m": [(t, [1, 2])]}, {"m": None}, None] for t in texts], of)
    elif kind == "encoded":
        values = values.dictionary_encode()
    rows = pa.record_batch({"n": pa.array(range(200), pa.int64()), "v": values})
    assert row_bytes(rows).sum() <= rows.nbytes
    for _ in range(6):
        cutter, sizes, at = Cutter(), list[int](), 0
        while at < 200:
            part = rows.slice(at, chance.randint(1, 60))
            at += part.num_rows
            cutter.put(part if chance.random() < 0.5 else pa.concat_batches([part, part.slice(0, 0)]))
            while (made := cutter.take()) is not None:
                assert isinstance(made, pa.RecordBatch)
                assert row_bytes(made.slice(0, made.num_rows - 1)).sum() < 1000
                sizes.append(made.num_rows)
        while (made := cutter.rest()) is not None:
            assert isinstance(made, pa.RecordBatch)
            sizes.append(made.num_rows)
        assert sum(sizes) == 200
        found.add(tuple(sizes))
    assert len(found) == 1
    assert (set(found.pop()) == {12, 8}) is (kind == "encoded"), "what is encoded is small"


def test_an_empty_sequence_has_no_batch() -> None:
    cutter = Cutter()
    cutter.put(Part(batch(), empty_batch(BAD_COLUMNS)))
    assert cutter.take() is None and cutter.rest() is None
