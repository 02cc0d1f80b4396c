"""What windows are to give, in plain Python: a loop over rows, epoch by epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from timed_rows import EPOCH

from onefold.flow.time.clocks import END

Row = dict[str, Any]


class Partitions:
    """The watermark of a source by its partitions: as docs/time.md says."""

    def __init__(self, delay_us: int, idle_ms: int | None) -> None:
        self._delay_us, self._idle_ms = delay_us, idle_ms
        self._at_us: dict[str, int | None] = {}
        self._active_ms: dict[str, int] = {}
        self.watermark_us = -END

    def reached_by(self, row: Sequence[Any]) -> int:
        """Up to where a row says that its partition has come."""
        return us_of(row[1]) - self._delay_us

    def end_epoch(self, rows: Mapping[str, Sequence[Any]], now_ms: int, is_last: bool) -> None:
        for name, of in rows.items():  # of all partitions that were named
            self._active_ms.setdefault(name, now_ms)
            self._at_us.setdefault(name, None)
            if of:
                self._active_ms[name] = now_ms
                known = [us for us in (self._at_us[name],) if us is not None]
                self._at_us[name] = max(*known, *map(self.reached_by, of), -END)
        awake = [n for n in self._at_us if self._idle_ms is None or now_ms - self._active_ms[n] < self._idle_ms]
        known = [us for us in self._at_us.values() if us is not None]
        found = -END
        if is_last:
            found = END
        elif awake and all(self._at_us[name] is not None for name in awake):
            found = min(self._at_us[name] or 0 for name in awake)
        elif not awake and known:
            found = max(known)
        self.watermark_us = max(self.watermark_us, found)


class Model:
    """Windows of rows (key, at, amount), with the sums of the amounts and the counts of the rows; of those that do not
    overlap also the first and last amounts."""

    def __init__(
        self,
        size_us: int,
        slide_us: int,
        offset_us: int,
        lateness_us: int,
        *,
        is_discarding: bool,
        is_keyed: bool,
        times: Partitions,
    ) -> None:
        self._size_us, self._slide_us, self._offset_us = size_us, slide_us, offset_us
        self._lateness_us, self._is_discarding, self._is_keyed, self._times = (
            lateness_us,
            is_discarding,
            is_keyed,
            times,
        )
        self._open: dict[tuple[int, Any], list[int]] = {}  # by end and key: all amounts
        self._new: dict[tuple[int, Any], list[int]] = {}  # those since the last firing
        self._emissions: dict[tuple[int, Any], int] = {}

    def epoch(self, rows: Mapping[str, Sequence[Any]], now_s: float, is_last: bool) -> tuple[list[Row], list[Row]]:
        before, late = self._times.watermark_us, []
        for of in rows.values():
            for key, at, amount, *_ in of:
                ends = self._ends(us_of(at))
                mine = [end for end in ends if not self._is_closed(end, before)]
                if ends and not mine:
                    late.append({"key": key, "at": at, "amount": amount})
                for end in mine:
                    for of_window in (self._open, self._new):
                        of_window.setdefault((end, key if self._is_keyed else None), []).append(amount)
        self._times.end_epoch(rows, round(now_s * 1_000), is_last)
        now = self._times.watermark_us
        fired = [at for at in self._new if at[0] <= now]
        results = [self._fired(at) for at in fired]
        for at in [at for at in self._open if self._is_closed(at[0], now)]:
            for of in (self._open, self._new, self._emissions):
                of.pop(at, None)  # type: ignore[attr-defined]
        return results, late

    def _fired(self, at: tuple[int, Any]) -> Row:
        end, key = at
        new = self._new.pop(at)
        amounts = new if self._is_discarding else self._open[at]
        self._emissions[at] = self._emissions.get(at, 0) + 1
        row = {"key": key} if self._is_keyed else {}
        row |= {"window_start": time_of(end - self._size_us), "window_end": time_of(end)}
        row |= {"total": sum(amounts), "n": len(amounts)}
        if self._size_us == self._slide_us:
            row |= {"first": amounts[0], "last": amounts[-1]}
        return row | ({"emission": self._emissions[at]} if self._lateness_us else {})

    def _ends(self, us: int) -> list[int]:
        """Of all windows that have the time."""
        start = self._offset_us + (us - self._offset_us) // self._slide_us * self._slide_us
        ends = []
        while us < start + self._size_us:
            ends.append(start + self._size_us)
            start -= self._slide_us
        return ends

    def _is_closed(self, end: int, watermark_us: int) -> bool:
        return watermark_us >= min(end + self._lateness_us, END)


def us_of(at: dt.datetime) -> int:
    return (at - EPOCH) // dt.timedelta(microseconds=1)


def time_of(us: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=us)
