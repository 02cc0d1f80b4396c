"""Slices merged beforehand: a window is of few blocks, and what has changed is merged anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from onefold.core.aggregates import merged
from onefold.core.aggregates.functions import Merge
from onefold.engine.logics.windows import block_log
from onefold.engine.logics.windows.block_log import BlockLog
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.storage import Storage
from onefold.flow.time.windows import Aligned

SCHEMA = pa.schema({"key": pa.string(), "slice": pa.timestamp("us"), "n": pa.int64()})
WINDOWS = Aligned(60, 1, 3)


class Merged:
    """A log of slices, and how many rows have been merged of it."""

    def __init__(self, tmp_path: Path) -> None:
        backend, self.rows = MemoryBackend(Storage(str(tmp_path / "state"), "windows"), 1), 0
        self.log = BlockLog(backend.blocks("windows", "log", SCHEMA, 1), 1, self.merge, WINDOWS)

    def merge(self, blocks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        self.rows += sum(map(len, blocks))
        return merged(pa.concat_batches(blocks), (Merge.SUM,))

    def append(self, slice_: int, *keys: str) -> None:
        columns = [[*keys], [slice_] * len(keys), [1] * len(keys)]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        self.log.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    def read(self, start: int) -> tuple[int, int]:
        """How many blocks a window is of, and the sum of what they have."""
        blocks = self.log.read_merged(start, start + 60)
        return len(blocks), sum(sum(block.column("n").to_pylist()) for block in blocks)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Merged:
    monkeypatch.setattr(block_log, "ROWS_MIN", 2)
    return Merged(tmp_path)


def test_windows_that_overlap_are_of_few_blocks_and_merge_each_slice_a_few_times(made: Merged) -> None:
    for slice_ in range(200):
        made.append(slice_, "a", "b")
    found = [made.read(start) for start in range(140)]
    assert {rows for _, rows in found} == {120}
    assert max(blocks for blocks, _ in found) <= 10
    assert made.rows <= 200 * 2 * 2


def test_a_slice_that_has_changed_is_read_anew(made: Merged) -> None:
    for slice_ in range(60):
        made.append(slice_, "a", "b")
    assert made.read(0)[1] == 120
    before = made.rows
    made.append(10, "a", "c")
    assert made.read(0)[1] == 122
    assert 0 < made.rows - before < 60, "those beside it are not merged again"


def test_slices_without_a_key_in_common_stay_as_they_are(made: Merged) -> None:
    for slice_ in range(60):
        made.append(slice_, f"key {slice_}", f"other {slice_}")
    assert made.read(0) == (60, 120)


def test_what_was_merged_before_a_restore_is_not_read_and_older_slices_are_read_one_by_one(made: Merged) -> None:
    for slice_ in range(60):
        made.append(slice_, "a", "b")
    made.read(0)
    made.log._table.delete((0, 0))
    made.log.restored()
    before = made.rows
    assert made.read(0) == (59, 118)
    assert made.rows == before
    for slice_ in range(60, 120):
        made.append(slice_, "a", "b")
    assert made.read(60)[0] < 10


def test_what_was_dropped_is_not_read(made: Merged) -> None:
    for slice_ in range(60):
        made.append(slice_, "a", "b")
    made.read(0)
    made.log.drop_while(lambda slice_: slice_ < 30)
    assert made.read(0)[1] == 60
