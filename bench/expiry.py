"""`python -m bench.expiry`: state whose entries live for a minute, while new ones come for ten. The time is that of the
epochs, which are handed it: ten minutes of it take as long as their work."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.state import BACKENDS, CHUNK, GROUPS, in_another, peak_rss
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.full_collections import make_rare
from onefold.flow import Ttl

MINUTES = 10
EPOCH_S = 5
PAGE = os.sysconf("SC_PAGE_SIZE")
_HEAD = f"{'minute':>6} {'alive':>12} {'dead':>10} {'share':>6} {'database':>10} {'snapshot':>10} {'RSS':>9} {'CPU':>8}"


@dataclass(frozen=True, slots=True)
class Load:
    backend: str
    keys: int
    folder: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000_000, help="in all, each written once")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--directory", type=Path, default=None, help="where snapshots and databases are")
    arguments = parser.parse_args()
    for backend in arguments.backends:
        folder = Path(tempfile.mkdtemp(prefix="bench-expiry-", dir=arguments.directory))
        try:
            in_another(live, Load(backend, arguments.keys, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def live(load: Load) -> None:
    """As an operator has it: an epoch begins, takes its rows, sweeps, and is stored."""
    storage = Storage(str(load.folder / "checkpoints"), "bench")
    backend = made_backend(load.backend, storage, 1, len(GROUPS), str(load.folder))
    backend.restore([], GROUPS)
    make_rare()
    expiry = Expiry("totals", backend)
    spec = StateSpec("totals", "total", StateKind.VALUE)
    table = expiry.table(spec, Ttl("1 minute"))
    epochs = MINUTES * 60 // EPOCH_S
    per_epoch = load.keys // epochs
    used = time.process_time()
    print(f"{load.backend}, {load.keys:,} keys in {MINUTES} minutes, each for one\n{_HEAD}")
    for epoch in range(1, epochs + 1):
        now_ms = epoch * EPOCH_S * 1_000
        expiry.begin(now_ms, None)
        first = (epoch - 1) * per_epoch
        for at in range(first, first + per_epoch, CHUNK):
            numbers = range(at, min(at + CHUNK, first + per_epoch))
            table.put_many([(number * 7919,) for number in numbers], [(number,) for number in numbers])
        expiry.sweep()
        frozen = backend.freeze(epoch)
        frozen.store()
        frozen.release()
        if now_ms % 60_000 == 0:
            minute, cpu_s = now_ms // 60_000, time.process_time() - used
            alive = min(epoch, 60 // EPOCH_S) * per_epoch
            dead = sum(1 for _ in backend.table(spec).scan()) - alive
            on_disk = sum(path.stat().st_size for path in load.folder.glob("tmp*/**/*") if path.is_file())
            sizes = f"{on_disk / 1e6:>7,.0f} MB {backend.size().bytes / 1e6:>7,.0f} MB {rss() / 1e6:>6,.0f} MB"
            print(f"{minute:>6} {alive:>12,} {dead:>10,} {dead / alive:>6.0%} {sizes} {cpu_s:>6.0f} s", flush=True)
            used += time.process_time() - used - cpu_s  # the count is the benchmark's own
    print(f"RSS at most {peak_rss() / 1e6:,.0f} MB")
    backend.close()


def rss() -> int:
    """Of this process now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


if __name__ == "__main__":
    main()
