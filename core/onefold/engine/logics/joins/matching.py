"""Which rows of two batches belong together: by sorting keys and times, and searching there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.engine.logics.reducing import PENDING_ROWS_MAX
from onefold.engine.logics.windows.spans import key_numbers, keys_of_both
from onefold.engine.logics.windows.window_logic import Numbers


@dataclass(frozen=True, slots=True)
class Matches:
    """Of each row of the one batch, those of the other that match it: they are at `places`, from `first` up to, not
    including, `last`; in the order of their times, and of equal ones as they came."""

    first: Numbers
    last: Numbers
    places: Numbers

    def pairs(self) -> Iterator[tuple[Numbers, Numbers]]:
        """The places of both rows of each, some at a time."""
        counts = self.last - self.first
        ends = np.cumsum(counts)
        at = 0
        while at < len(counts):
            before = int(ends[at - 1]) if at else 0
            to = max(at + 1, int(np.searchsorted(ends, before + PENDING_ROWS_MAX, "right")))
            some = counts[at:to]
            ones = np.repeat(np.arange(at, to), some)
            if len(ones):
                begins = np.repeat(self.first[at:to] - (ends[at:to] - some - before), some)
                yield ones, self.places[begins + np.arange(len(ones))]
            at = to

    def newest(self) -> Numbers:
        """The place of the last one of each, or -1."""
        found = np.full(len(self.first), -1, np.int64)
        is_found = self.last > self.first
        found[is_found] = self.places[self.last[is_found] - 1]
        return found


def matches(
    rows: pa.RecordBatch, earliest: Numbers, latest: Numbers, others: pa.RecordBatch, times: Numbers, width: int
) -> Matches:
    """The rows of `others`, whose times are given, that have the key of a row, and a time from its `earliest` to its
    `latest`. The first `width` columns of both are the key. One with a null in it matches nothing."""
    numbers = keys_of_both(rows, others, width)
    of_rows, of_others = numbers[: len(rows)], numbers[len(rows) :]
    of_rows[~has_key(rows, width)] = len(numbers)  # which no other row has
    known = np.unique(times)
    span = len(known) + 1
    low, high = np.searchsorted(known, earliest), np.searchsorted(known, latest, "right")
    ranks = of_others * span + np.searchsorted(known, times)
    places = np.argsort(ranks, kind="stable")
    ranks = ranks[places]
    first = np.searchsorted(ranks, of_rows * span + low)
    return Matches(first, np.maximum(first, np.searchsorted(ranks, of_rows * span + high)), places)


def newest(rows: pa.RecordBatch, times: Numbers, width: int) -> pa.RecordBatch:
    """Of each key the row with the highest time, and of several of these the one that came last; in their order."""
    numbers = key_numbers(rows.columns[:width], len(rows))
    order = np.lexsort((times, numbers))  # stable
    is_last = np.ones(len(order), bool)
    is_last[:-1] = numbers[order[1:]] != numbers[order[:-1]]
    return rows if is_last.all() else rows.take(pa.array(np.sort(order[is_last])))


def has_key(rows: pa.RecordBatch, width: int) -> Numbers:
    """Which rows have no null in their key."""
    found: Numbers = np.ones(len(rows), bool)
    for column in rows.columns[:width]:
        if column.null_count:
            found &= pc.is_valid(column).to_numpy(zero_copy_only=False)
    return found
