"""The records of a topic, and what windows of them have: the same ones in every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.peers import Record
from bench.world import PARTITIONS

__all__ = ["KINDS", "START_MS", "Windows", "records", "windows"]

SEED = 1
START_MS = 1_767_225_600_000
"""2026-01-01, where the first windows of all sizes begin."""

ROWS_PER_S = 10_000
OLDER, OLDER_MS_MAX = 0.3, 4_999
"""So many of the records are older than those around them, by up to so much: windows wait for 5 seconds."""

END_MS = 3_600_000
"""How much later the records are that end each partition: for those whose windows close by later records alone."""

SIZE_MS, SLIDE_MS, GAP_MS = 60_000, 1_000, 10_000
KINDS = ("tumbling", "sliding", "session")


@dataclass(frozen=True, slots=True)
class Windows:
    """Of all keys, a place each: key, start and end in milliseconds since 1970, and the sum of the amounts."""

    account: np.ndarray
    start_ms: np.ndarray
    end_ms: np.ndarray
    total: np.ndarray

    def __len__(self) -> int:
        return len(self.total)

    def ordered(self) -> np.ndarray:
        """As rows of four numbers, by key and start."""
        found = np.stack([self.account, self.start_ms, self.end_ms, self.total])
        return found[:, np.lexsort((self.start_ms, self.account))]


def records(rows: int, keys: int) -> Iterator[Record]:
    """Those of a topic: each account in one partition, where it is the message's key; its time is the message's, too.
    Each partition ends with one of an account of its own, with an amount of 0."""
    account, amount, at_ms = _columns(rows, keys)
    ends = np.arange(PARTITIONS)
    account, amount = np.r_[account, -1 - ends], np.r_[amount, 0 * ends]
    at_ms = np.r_[at_ms, 0 * ends + START_MS + rows * 1000 // ROWS_PER_S + END_MS]
    partition = np.r_[account[:rows] % PARTITIONS, ends]
    at = np.datetime_as_string(at_ms.astype("datetime64[ms]"))
    columns = (column.tolist() for column in (account, amount, partition, at_ms, at))
    for number, (key, value, to, ms, text) in enumerate(zip(*columns, strict=True)):
        record = b'{"id":%d,"account":%d,"amount":%d,"at":"%sZ"}' % (number, key, value, text.encode())
        yield record, b"%d" % key, to, ms


def windows(kind: str, rows: int, keys: int) -> Windows:
    """Those of `records`, but without the ones that end partitions."""
    account, amount, at_ms = _columns(rows, keys)
    if kind == "session":
        return _sessions(account, amount, at_ms)
    slide_ms = SIZE_MS if kind == "tumbling" else SLIDE_MS
    slices = at_ms // slide_ms
    first, panes = slices.min(), SIZE_MS // slide_ms
    # a sum for each key and slice that has one, then for each window that has the slice
    of, place = np.unique(account * (span := int(slices.max() - first) + 1) + slices - first, return_inverse=True)
    sums = np.bincount(place, amount).astype(np.int64)
    ends = of // span * (span + panes) + of % span
    all_ends, place = np.unique((ends[:, None] + np.arange(panes)).ravel(), return_inverse=True)
    totals = np.bincount(place, np.repeat(sums, panes)).astype(np.int64)
    end_ms = (all_ends % (span + panes) + first + 1) * slide_ms
    return Windows(all_ends // (span + panes), end_ms - SIZE_MS, end_ms, totals)


def _sessions(account: np.ndarray, amount: np.ndarray, at_ms: np.ndarray) -> Windows:
    order = np.lexsort((at_ms, account))
    account, amount, at_ms = account[order], amount[order], at_ms[order]
    begins = np.r_[True, (np.diff(account) != 0) | (np.diff(at_ms) > GAP_MS)]
    first = np.flatnonzero(begins)
    last = np.r_[first[1:], len(account)] - 1
    return Windows(account[first], at_ms[first], at_ms[last] + GAP_MS, np.add.reduceat(amount, first))


def _columns(rows: int, keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accounts, amounts from 1 on, and times in milliseconds."""
    random = np.random.default_rng(SEED)
    account, amount = random.integers(keys, size=rows), random.integers(1, 100_000, size=rows)
    older_ms = (random.random(rows) < OLDER) * random.integers(1, OLDER_MS_MAX + 1, size=rows)
    return account, amount, START_MS + np.arange(rows) * 1000 // ROWS_PER_S - older_ms
