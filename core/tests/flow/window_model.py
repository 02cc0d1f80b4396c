"""What windows are to give, in plain Python: a loop over rows, epoch by epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


class EarlyModel(Model):
    """Windows that fire before their end, too: at each multiple of so many microseconds, or each epoch (None)."""

    def __init__(self, every_us: int | None, *shape: int, results: str, is_keyed: bool, times: Partitions) -> None:
        super().__init__(*shape, is_discarding=results == "discarding", is_keyed=is_keyed, times=times)
        self._every_us, self._results = every_us, results
        self._rows: dict[tuple[int, Any], list[tuple[int, int]]] = {}
        self._unfired: dict[tuple[int, Any], list[tuple[int, int]]] = {}
        self._out: dict[tuple[int, Any], Row] = {}

    def epoch(self, rows: Mapping[str, Sequence[Any]], now_s: float, is_last: bool) -> tuple[list[Row], list[Row]]:
        before, late, came = self._times.watermark_us, [], set()
        for key, at, amount, *_ in (row for of in rows.values() for row in of):
            ends = self._ends(us_of(at))
            mine = [end for end in ends if not self._is_closed(end, before)]
            if ends and not mine:
                late.append({"key": key, "at": at, "amount": amount})
            for place in ((end, key if self._is_keyed else None) for end in mine):
                came.add(place)
                for kept in (self._rows, self._unfired):
                    kept.setdefault(place, []).append((us_of(at), amount))
        self._times.end_epoch(rows, round(now_s * 1_000), is_last)
        now = self._times.watermark_us
        firings = []
        for place in self._rows:
            end = place[0]
            if end <= before:
                firings += [(-END, place)] if place in came else []
                continue
            if self._every_us is None:
                firings += [(now, place)] if end > now and place in came else []
            else:
                panes = range(end - self._size_us + self._every_us, end, self._every_us)
                firings += [(at, place) for at in panes if before < at <= now]
            firings += [(end, place)] if end <= now else []
        found = [
            row for at, place in sorted(firings, key=lambda of: of[0]) for row in self._fires(place, at, before, now)
        ]
        for place in [place for place in self._rows if self._is_closed(place[0], now)]:
            for of in (self._rows, self._unfired, self._out, self._emissions):
                of.pop(place, None)  # type: ignore[attr-defined]
        return found, late

    def _fires(self, place: tuple[int, Any], at: int, before: int, now: int) -> list[Row]:
        end, key = place
        is_early = end > now or (at != -END and at < end)
        up_to = at if is_early and self._every_us is not None else END
        new = [row for row in self._unfired.get(place, []) if row[0] < up_to]
        if not new and (is_early or self._results == "discarding"):
            return []
        self._unfired[place] = [row for row in self._unfired.get(place, []) if row[0] >= up_to]
        of = new if self._results == "discarding" else [row for row in self._rows[place] if row[0] < up_to]
        row = {"key": key} if self._is_keyed else {}
        row |= {"window_start": time_of(end - self._size_us), "window_end": time_of(end)}
        row |= {"total": sum(amount for _, amount in of), "n": len(of)}
        number = {"emission": self._emissions.get(place, 0) + 1}
        when = {"when": "early" if is_early else "late" if end <= before else "on_time"}
        if self._results != "retracting":
            self._emissions[place] = number["emission"]
            return [{**row, **number, **when}]
        old = self._out.get(place)
        if old == row:
            return []
        self._emissions[place], self._out[place] = number["emission"], row
        back = [] if old is None else [{**old, **number, "retracts": True, **when}]
        return [*back, {**row, **number, "retracts": False, **when}]


@dataclass
class Span:
    """A session: its rows by their arrival, and what came out of it, start to emission, and is not taken back."""

    start: int
    end: int
    rows: list[tuple[int, int]]
    out: list[Row]
    emissions: int = 0
    is_new: bool = True  # it has rows that did not come out yet


class SessionModel:
    """Sessions of rows (key, at, amount). The gap is so many microseconds; None: that of each row, its fourth value, in
    seconds."""

    def __init__(
        self, gap_us: int | None, lateness_us: int, *, results: str, is_keyed: bool, times: Partitions, is_early: bool
    ) -> None:
        self._gap_us, self._lateness_us, self._results, self._is_keyed = gap_us, lateness_us, results, is_keyed
        self._times, self._is_early = times, is_early
        self._open: dict[Any, list[Span]] = {}

    def epoch(self, rows: Mapping[str, Sequence[Any]], now_s: float, is_last: bool) -> tuple[list[Row], list[Row]]:
        before, late = self._times.watermark_us, []
        known = {key: [(of.start, of.end) for of in spans] for key, spans in self._open.items()}
        for name, time, amount, *gap in (row for of in rows.values() for row in of):
            at, key = us_of(time), name if self._is_keyed else None
            is_known = any(start <= at <= end for start, end in known.get(key, ()))
            if at < before - self._lateness_us and not is_known:
                late.append({"key": name, "at": time, "amount": amount})
                continue
            gap_us = gap[0] * 1_000_000 if self._gap_us is None else self._gap_us
            made, apart = Span(at, at + gap_us, [(at, amount)], []), []
            for other in self._open.get(key, ()):
                if other.end < made.start or made.end < other.start:
                    apart.append(other)
                    continue
                made.start, made.end = min(made.start, other.start), max(made.end, other.end)
                made.rows += other.rows
                made.out += other.out
                made.emissions += other.emissions
            self._open[key] = [*apart, made]
        self._times.end_epoch(rows, round(now_s * 1_000), is_last)
        now = self._times.watermark_us
        results = [
            row
            for key, spans in self._open.items()
            for of in spans
            if (of.end < now and (of.is_new or of.end >= before)) or (of.is_new and self._is_early)
            for row in self._fired(key, of)
        ]
        for key, spans in self._open.items():
            self._open[key] = [of for of in spans if now != END and of.end + self._lateness_us >= now]
        return results, late

    def _fired(self, key: Any, of: Span) -> list[Row]:
        row = {"key": key} if self._is_keyed else {}
        amounts = [amount for _, amount in of.rows]
        row |= {"window_start": time_of(of.start), "window_end": time_of(of.end), "total": sum(amounts)}
        row |= {"n": len(amounts), "most": max(amounts)}
        of.is_new, is_same = False, of.out == [row]
        if not self._lateness_us and not self._is_early:
            return [row]
        if self._results == "retracting":
            back = [] if is_same else of.out
        else:
            back = [old for old in of.out if old["window_start"] != row["window_start"]]
        if is_same and self._results == "retracting":
            return []
        of.emissions += 1
        of.out = [row]
        number = {"emission": of.emissions}
        return [*({**old, **number, "retracts": True} for old in back), {**row, **number, "retracts": False}]


def us_of(at: dt.datetime) -> int:
    return (at - EPOCH) // dt.timedelta(microseconds=1)


def time_of(us: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=us)
