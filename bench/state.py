"""`python -m bench.state`: what keyed state costs, in memory and in RocksDB: a barrier, an epoch, a row, a restore."""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from onefold.core.aggregates.accumulation import Accumulation
from onefold.core.extras import uncollected
from onefold.engine.state.state_backend import StateBackend, StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.full_collections import make_rare
from onefold.flow import count, sum_

T = TypeVar("T")
R = TypeVar("R")
BACKENDS = ("memory", "rocksdb")
GROUPS = range(128)
CHUNK = 50_000
FILLED = 1_000_000  # keys in an epoch, while the state is built
EPOCHS = 12
CHANGES = (100, 10_000, 100_000)
SAMPLE = 200_000


class Values:
    """As a processor keeps its value states: tuples."""

    def __init__(self, backend: StateBackend) -> None:
        self._table = backend.table(StateSpec("totals", "total", StateKind.VALUE))

    def put(self, numbers: Sequence[int], epoch: int) -> Callable[[], object]:
        keys, values = [(number,) for number in numbers], [(number, epoch) for number in numbers]
        return lambda: self._table.put_many(keys, values)

    def get(self, numbers: Sequence[int]) -> Callable[[], object]:
        keys = [(number,) for number in numbers]
        return lambda: self._table.get_many(keys)


class Rows:
    """As an aggregate keeps its states: a sum and a count, with the fold that reads what is there."""

    _schema = pa.schema([("key", pa.int64()), ("amount", pa.int64())])

    def __init__(self, backend: StateBackend) -> None:
        self._folding = Accumulation(self._schema, ("key",), (("total", sum_("amount")), ("n", count())))
        self._rows = backend.rows("totals", "aggregates", self._folding.state_schema, 1)

    def put(self, numbers: Sequence[int], epoch: int) -> Callable[[], object]:
        arrays = [pa.array(numbers), pa.array(np.full(len(numbers), epoch))]
        states = self._folding.states(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return lambda: self._rows.fold(states, self._folding)

    def get(self, numbers: Sequence[int]) -> Callable[[], object]:
        keys = pa.RecordBatch.from_arrays([pa.array(numbers)], names=["key"])
        return lambda: self._rows.find(keys)


STATES: dict[str, type[Values | Rows]] = {"value": Values, "aggregate": Rows}


@dataclass(slots=True)
class Result:
    """Of one backend with so many keys, each part in a process of its own. CPU of rows and barriers is the thread's
    that handles records, of a restore the process's."""

    backend: str
    state: str
    keys: int
    folder: Path
    handle: str = ""
    put_us: float = 0.0
    get_us: float = 0.0
    built_s: float = 0.0
    built_cpu_s: float = 0.0
    freeze_ms: list[float] = field(default_factory=list)
    freeze_cpu_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)  # the longest put of 100 rows while a snapshot was stored
    epoch_bytes: dict[int, int] = field(default_factory=dict)  # by the number of changes, the median
    whole_bytes: int = 0
    local_bytes: int = 0  # of the database
    rss: int = 0
    restore_s: float = 0.0
    restore_cpu_s: float = 0.0
    restore_rss: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--states", nargs="+", default=[*STATES], choices=[*STATES])
    parser.add_argument(
        "--directory", type=Path, default=None, help="where snapshots and databases are (a temporary one)"
    )
    arguments = parser.parse_args()
    for keys in arguments.keys:
        for state in arguments.states:
            for backend in arguments.backends:
                folder = Path(tempfile.mkdtemp(prefix="bench-state-", dir=arguments.directory))
                try:
                    say(in_another(restored, in_another(written, Result(backend, state, keys, folder))))
                finally:
                    shutil.rmtree(folder, ignore_errors=True)


def in_another(work: Callable[[T], R], given: T) -> R:
    """In a process whose memory is this work's alone."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, given).result()


def written(result: Result) -> Result:
    storage, backend = opened(result, "first")
    backend.restore([], GROUPS)
    make_rare()
    rows = STATES[result.state](backend)
    begun, used = time.perf_counter(), time.process_time()
    epoch = fill(backend, rows, result)
    result.built_s, result.built_cpu_s = time.perf_counter() - begun, time.process_time() - used
    result.whole_bytes = stored(storage)
    for changes in CHANGES:
        sizes = []
        for _ in range(EPOCHS):
            epoch += 1
            rows.put([(epoch * 7919 + number * 104_729) % result.keys for number in range(changes)], epoch)()
            before = stored(storage)
            result.handle = store(backend, rows, epoch, result)
            sizes.append(stored(storage) - before)
        result.epoch_bytes[changes] = int(statistics.median(sizes))
    result.local_bytes = sum(path.stat().st_size for path in (result.folder / "first").rglob("*") if path.is_file())
    result.rss = peak_rss()
    backend.close()
    return result


def restored(result: Result) -> Result:
    _, backend = opened(result, "again")
    begun, used = time.perf_counter(), time.process_time()
    with uncollected():  # as a worker's start has it
        backend.restore([result.handle], GROUPS)
        STATES[result.state](backend)
        make_rare()
    result.restore_s, result.restore_cpu_s = time.perf_counter() - begun, time.process_time() - used
    result.restore_rss = peak_rss()
    backend.close()
    return result


def opened(result: Result, folder: str) -> tuple[Storage, Any]:
    (result.folder / folder).mkdir()
    storage = Storage(str(result.folder / "checkpoints"), "bench")
    return storage, made_backend(result.backend, storage, 1, len(GROUPS), str(result.folder / folder))


def fill(backend: StateBackend, rows: Values | Rows, result: Result) -> int:
    """Gives the last epoch."""
    used, epoch = 0.0, 0
    for first in range(0, result.keys, FILLED):
        epoch += 1
        end = min(first + FILLED, result.keys)
        for at in range(first, end, CHUNK):
            used += cpu(rows.put(range(at, min(at + CHUNK, end)), epoch))
        result.handle = store(backend, rows, epoch, result)
    result.put_us = used / result.keys * 1e6
    result.get_us = cpu(rows.get([number * 7919 % result.keys for number in range(SAMPLE)])) / SAMPLE * 1e6
    return epoch


def store(backend: StateBackend, state: Values | Rows, epoch: int, result: Result) -> str:
    """As a subtask does: freeze, and store in a thread while records are handled."""
    begun, used = time.perf_counter(), time.thread_time()
    frozen = backend.freeze(epoch)
    result.freeze_ms.append((time.perf_counter() - begun) * 1e3)
    result.freeze_cpu_ms.append((time.thread_time() - used) * 1e3)
    handles: list[str] = []
    thread = threading.Thread(target=lambda: handles.append(frozen.store()))
    thread.start()
    longest = 0.0
    while thread.is_alive():
        put = state.put(range(100), epoch)
        begun = time.perf_counter()
        put()
        longest = max(longest, time.perf_counter() - begun)
        time.sleep(0.002)
    thread.join()
    result.wait_ms.append(longest * 1e3)
    frozen.release()
    return handles[0]


def stored(storage: Storage) -> int:
    return sum(size or 0 for size in storage.sizes(storage.below("")).values())


def cpu(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def peak_rss() -> int:
    """Of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def say(result: Result) -> None:
    freeze, cpus = sorted(result.freeze_ms), result.freeze_cpu_ms
    print(f"{result.backend}, {result.state}, {result.keys:,} keys")
    print(f"  put {result.put_us:.2f} us a row, get {result.get_us:.2f} us a row (CPU)")
    print(f"  built in {result.built_s:.1f} s, {result.built_cpu_s:.1f} s of CPU with snapshots", end=", ")
    print(f"RSS at most {result.rss / 1e6:,.0f} MB, database {result.local_bytes / 1e6:,.1f} MB")
    print(
        f"  freeze: median {statistics.median(freeze):.2f} ms, longest {freeze[-1]:.2f} ms of {len(freeze)},", end=" "
    )
    print(f"with at most {max(cpus):.2f} ms of CPU")
    print(f"  longest put of 100 rows while a snapshot is stored: {max(result.wait_ms):.1f} ms")
    print(f"  snapshots of a state that is built {result.whole_bytes / 1e6:,.1f} MB; then, by changes an epoch:")
    for changes, size in result.epoch_bytes.items():
        print(f"    {changes:>9,}  {size / 1e3:>12,.1f} kB, {size / changes:,.0f} bytes a change")
    print(f"  restore {result.restore_s:.1f} s, {result.restore_cpu_s:.1f} s of CPU", end=", ")
    print(f"RSS at most {result.restore_rss / 1e6:,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
