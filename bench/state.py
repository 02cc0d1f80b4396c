"""`python -m bench.state`: what keyed state costs, in memory and in RocksDB: a barrier, an epoch, a row, a restore."""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend, StateKind, StateSpec
from onefold.engine.state.storage import Storage

TOTALS = StateSpec("totals", "total", StateKind.VALUE)
CHUNK = 50_000
EPOCHS = 12
CHANGES = (100, 10_000, 100_000)


@dataclass(slots=True)
class Result:
    """Of one backend with so many keys. CPU is the thread's that handles records."""

    backend: str
    keys: int
    put_us: float = 0.0
    get_us: float = 0.0
    freeze_ms: list[float] = field(default_factory=list)
    freeze_cpu_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)  # the longest put of 100 rows while a snapshot was stored
    epoch_bytes: dict[int, int] = field(default_factory=dict)  # by the number of changes, the median
    whole_bytes: int = 0
    restore_s: float = 0.0
    restore_cpu_s: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--backends", nargs="+", default=["memory", "rocksdb"], choices=["memory", "rocksdb"])
    parser.add_argument(
        "--directory", type=Path, default=None, help="where snapshots and databases are (a temporary one)"
    )
    arguments = parser.parse_args()
    for keys in arguments.keys:
        for backend in arguments.backends:
            folder = Path(tempfile.mkdtemp(prefix="bench-state-", dir=arguments.directory))
            try:
                say(run(backend, keys, folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def run(name: str, keys: int, folder: Path) -> Result:
    storage = Storage(str(folder / "checkpoints"), "bench")
    result = Result(name, keys)
    backend = make(name, storage, folder / "first")
    backend.restore([], range(128))
    fill(backend, keys, result)
    handle = store(backend, 1, result)
    result.whole_bytes = stored(storage)
    epoch = 1
    for changes in CHANGES:
        sizes = []
        for _ in range(EPOCHS):
            epoch += 1
            rows = [((epoch * 7919 + number * 104_729) % keys,) for number in range(changes)]
            put(backend, rows, epoch)
            before = stored(storage)
            handle = store(backend, epoch, result)
            sizes.append(stored(storage) - before)
        result.epoch_bytes[changes] = int(statistics.median(sizes))
    backend.close()
    del backend
    gc.collect()
    begun, used = time.perf_counter(), time.thread_time()
    again = make(name, storage, folder / "again")
    again.restore([handle], range(128))
    result.restore_s, result.restore_cpu_s = time.perf_counter() - begun, time.thread_time() - used
    again.close()
    return result


def make(name: str, storage: Storage, folder: Path) -> StateBackend:
    folder.mkdir()
    return MemoryBackend(storage, 1) if name == "memory" else RocksBackend(storage, 1, folder=str(folder))


def fill(backend: StateBackend, keys: int, result: Result) -> None:
    gc.disable()
    table = backend.table(TOTALS)
    used = 0.0
    for first in range(0, keys, CHUNK):
        rows = [(number,) for number in range(first, min(first + CHUNK, keys))]
        values = [(number, 1) for (number,) in rows]
        used += cpu(lambda rows=rows, values=values: table.put_many(rows, values))  # type: ignore[misc]  # defaults
    result.put_us = used / keys * 1e6
    sample = [(number * 7919 % keys,) for number in range(200_000)]
    result.get_us = cpu(lambda: table.get_many(sample)) / len(sample) * 1e6
    gc.enable()
    gc.freeze()


def put(backend: StateBackend, rows: Sequence[tuple[int]], epoch: int) -> None:
    backend.table(TOTALS).put_many(rows, [(number, epoch) for (number,) in rows])


def store(backend: StateBackend, epoch: int, result: Result) -> str:
    """As a subtask does: freeze, and store in a thread while records are handled."""
    begun, used = time.perf_counter(), time.thread_time()
    frozen = backend.freeze(epoch)
    result.freeze_ms.append((time.perf_counter() - begun) * 1e3)
    result.freeze_cpu_ms.append((time.thread_time() - used) * 1e3)
    handles: list[str] = []
    thread = threading.Thread(target=lambda: handles.append(frozen.store()))
    thread.start()
    rows = [(number,) for number in range(100)]
    longest = 0.0
    while thread.is_alive():
        begun = time.perf_counter()
        put(backend, rows, epoch)
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


def say(result: Result) -> None:
    freeze, cpus = sorted(result.freeze_ms), result.freeze_cpu_ms
    print(f"{result.backend}, {result.keys:,} keys")
    print(f"  put_many {result.put_us:.2f} us a row, get_many {result.get_us:.2f} us a row (CPU)")
    print(
        f"  freeze: median {statistics.median(freeze):.2f} ms, longest {freeze[-1]:.2f} ms of {len(freeze)},", end=" "
    )
    print(f"with at most {max(cpus):.2f} ms of CPU")
    print(f"  longest put of 100 rows while a snapshot is stored: {max(result.wait_ms):.1f} ms")
    print(f"  first snapshot {result.whole_bytes / 1e6:,.1f} MB; then, by changes an epoch:")
    for changes, size in result.epoch_bytes.items():
        print(f"    {changes:>9,}  {size / 1e3:>12,.1f} kB, {size / changes:,.0f} bytes a change")
    print(f"  restore {result.restore_s:.1f} s, {result.restore_cpu_s:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
