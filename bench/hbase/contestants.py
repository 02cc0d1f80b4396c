"""Who runs, in which order, and who is compared with whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.hbase import ours, peers
from bench.hbase.place import Place, Spent

__all__ = ["BARE", "CONTESTANTS", "GOALS", "Contestant"]


@dataclass(frozen=True)
class Contestant:
    name: str
    run: Callable[[Place], Spent]


_SIZES: Sequence[tuple[int, int]] = ((500, 1), (5_000, 1), (1_000, 4), (5_000, 4), (10_000, 4), (2_000, 8))
BARE = tuple(f"happybase, batches of {rows:,}, threads {threads}" for rows, threads in _SIZES)

CONTESTANTS = (
    *(
        Contestant(name, partial(peers.in_batches, batch_rows=rows, threads=threads))
        for name, (rows, threads) in zip(BARE, _SIZES, strict=True)
    ),
    Contestant("HBaseTable.put", ours.put_alone),
    Contestant("HBaseTable.get", ours.get_alone),
    Contestant("row_key", ours.row_key),
    Contestant("rolling, a change a key", partial(ours.rolling, per_key=1)),
    Contestant("rolling, 10 changes a key, 2 epochs", partial(ours.rolling, per_key=10, epochs=2)),
    Contestant("counters one by one", peers.counters),
    Contestant("checkAndPut one by one", peers.check_and_put),
    Contestant("incremental, a message a key", partial(ours.incremental, per_key=1)),
    Contestant("incremental, 10 messages a key, 2 epochs", partial(ours.incremental, per_key=10, epochs=2)),
)

# Ours, the peers of whom the fastest counts, and how many times its throughput ours has to reach.
GOALS: tuple[tuple[str, Sequence[str], float | None], ...] = (
    ("HBaseTable.put", BARE, None),
    ("row_key", BARE, 0.8),
    ("rolling, a change a key", BARE, 0.5),
    ("rolling, 10 changes a key, 2 epochs", BARE, 0.5),
    ("incremental, a message a key", ("checkAndPut one by one",), 10.0),
    ("incremental, 10 messages a key, 2 epochs", ("checkAndPut one by one",), 10.0),
    ("incremental, a message a key", ("counters one by one",), None),
    ("incremental, 10 messages a key, 2 epochs", ("counters one by one",), None),
)
