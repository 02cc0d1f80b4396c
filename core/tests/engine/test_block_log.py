"""The log of blocks of windows: what is written, merged, read and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from onefold.core.aggregates import merged
from onefold.core.aggregates.functions import Merge
from onefold.engine.logics.windows.block_log import MERGED, BlockLog
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow.time.windows import Aligned

SCHEMA = pa.schema({"key": pa.string(), "slice": pa.timestamp("us"), "n": pa.int64(), "newest": pa.int64()})


@pytest.fixture(params=["memory", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> StateBackend:
    storage = Storage(str(tmp_path / "state"), "windows")
    return MemoryBackend(storage, 1) if request.param == "memory" else RocksBackend(storage, 1, folder=str(tmp_path))


def merge(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return merged(pa.concat_batches(rows), (Merge.SUM, Merge.LAST))


def log_of(backend: StateBackend) -> BlockLog:
    return BlockLog(backend.blocks("windows", "log", SCHEMA, 1), 1, merge, Aligned(1, 1, 0))


def rows(*of: tuple[str, int], n: int = 1) -> pa.RecordBatch:
    columns = [[key for key, _ in of], [slice_ for _, slice_ in of], [n] * len(of), [n] * len(of)]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def test_an_epochs_rows_are_a_block_of_each_slice_in_their_order(backend: StateBackend) -> None:
    log = log_of(backend)
    given = log.append(rows(("a", 20), ("b", -10), ("c", 20)))
    assert [(at, of.column("key").to_pylist()) for at, of in given.items()] == [(-10, ["b"]), (20, ["a", "c"])]
    assert log.between(-10, 20) == [-10] and log.between(-10, 21) == [-10, 20] and log.between(-9, 20) == []
    log.append(rows(("b", -10), n=2))
    assert [of.column("n").to_pylist() for of in log.read(-20, 30)] == [[1], [1, 1], [2]]


def test_few_rows_of_an_epoch_do_not_keep_the_others_in_memory(backend: StateBackend) -> None:
    log = log_of(backend)
    given = log.append(rows(*(("a", 0) for _ in range(1_000)), ("b", 5)))
    assert sum(buffer.size for buffer in given[5].column("n").buffers() if buffer is not None) < 100
    assert given[5].to_pylist()[0]["key"] == "b" and len(given[0]) == 1_000
    backend.close()


def test_eight_blocks_become_one_and_eight_of_these_one_again(backend: StateBackend) -> None:
    log, sizes = log_of(backend), []
    for number in range(MERGED**2):
        log.append(rows(("a", 0), (f"{number % 3}", 5), n=number))
        sizes.append(len(log.read(0, 1)))
    assert max(sizes) == 2 * (MERGED - 1)
    assert sizes[MERGED - 2 : MERGED] == [MERGED - 1, 1] and sizes[-1] == 1
    (block,) = log.read(0, 1)
    assert block.column("n").to_pylist() == [sum(range(MERGED**2))]
    assert block.column("newest").to_pylist() == [MERGED**2 - 1]
    backend.close()


def test_blocks_of_a_level_that_a_restart_has_forgotten_are_merged_all_the_same(backend: StateBackend) -> None:
    log = log_of(backend)
    for number in range(3 * MERGED):
        log.append(rows(("a", 0), n=number))
        log.restored()
    assert len(log.read(0, 1)) < MERGED
    assert sum(block.column("n")[0].as_py() for block in log.read(0, 1)) == sum(range(3 * MERGED))
    backend.close()


def test_slices_are_dropped_from_the_earliest_on(backend: StateBackend) -> None:
    log = log_of(backend)
    for _ in range(3):
        log.append(rows(("a", 0), ("a", 10), ("a", 20)))
    log.drop_while(lambda at: at < 20)
    assert log.between(-100, 100) == [20] and len(log.read(0, 30)) == 3
    log.drop_while(lambda at: at < 100)
    log.restored()
    assert log.between(-100, 100) == [] and backend.blocks("windows", "log", SCHEMA, 1).ids() == []
    backend.close()
