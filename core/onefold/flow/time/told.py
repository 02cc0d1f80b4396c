"""Watermarks as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from onefold.core.values.plain import counted
from onefold.flow.time.clocks import END, ClockStatus

SILENT_MS = 1_000  # for which a partition has to be silent before it is said to be waited for


@dataclass(frozen=True, slots=True)
class ToldClock:
    """For people: `watermark 12:03:05.2 (2.1 s behind)`, and what it waits for, if that has been for long:
    `orders/3 (silent for 41 s, idle after 60 s)`. `us` is None while it is not known, and once its sources have ended.
    """

    us: int | None
    watermark: str
    waits_for: str | None = None
    late: int = 0  # rows that came too late since the run began

    def __str__(self) -> str:
        return ", ".join(self.parts())

    def parts(self) -> Iterator[str]:
        """Without the late rows."""
        yield self.watermark
        if self.waits_for is not None:
            yield f"waits for {self.waits_for}"

    @classmethod
    def of(cls, clock: ClockStatus, now_ms: int, late: int = 0) -> ToldClock:
        """At the end of an epoch of that time."""
        us = clock.watermark_us
        if us == END:
            return cls(None, "watermark at the end of its sources", None, late)
        if clock.is_by_end:
            return cls(None, "no need of a watermark", None, late)
        told = "no watermark yet"
        if us is not None:
            behind_s = (now_ms - us / 1_000) / 1_000
            told = f"watermark {told_moment(us)} ({abs(behind_s):,.1f} s {'ahead' if behind_s < 0 else 'behind'})"
        silent_ms = now_ms - clock.since_ms
        if clock.waits_for is None or (us is not None and silent_ms < SILENT_MS):
            return cls(us, told, None, late)
        until = "never idle" if clock.idle_ms is None else f"idle after {clock.idle_ms / 1_000:g} s"
        return cls(us, told, f"{clock.waits_for} (silent for {silent_ms / 1_000:,.0f} s, {until})", late)


def told_moment(us: int) -> str:
    """In UTC."""
    at = moment(us)
    return f"{us:,} us" if at is None else f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-5]


def moment(us: int) -> datetime | None:
    """None for a time that Python has none for."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    except OverflowError:
        return None


class ToldClocks:
    """Of the operators that go by event time, by their uids, after the last epoch that was written. One may be written
    again."""

    def __init__(self) -> None:
        self.clocks: Mapping[str, ToldClock] = {}
        self._epoch = 0
        self._before: dict[str, int] = {}  # rows that came too late, by then

    def note(self, epoch: int, clocks: Mapping[str, ClockStatus], now_ms: int) -> None:
        """At the end of an epoch of that time."""
        if epoch != self._epoch:
            self._epoch, self._before = epoch, {uid: clock.late for uid, clock in self.clocks.items()}
        self.clocks = {
            uid: ToldClock.of(clock, now_ms, self._before.get(uid, 0) + clock.late) for uid, clock in clocks.items()
        }


def told_lowest(clocks: Mapping[str, ClockStatus], now_ms: int) -> str:
    """The one that is furthest behind, at the end of an epoch of that time: with several operators, by its uid."""
    known_us = {uid: -END if of.watermark_us is None else of.watermark_us for uid, of in clocks.items()}
    uid = min(known_us, key=lambda uid: (clocks[uid].is_by_end, known_us[uid]))
    told = ToldClock.of(clocks[uid], now_ms)
    return f"{told}" if len(clocks) == 1 else f"{uid}: {told}"


def told_late(count: int, uids: Iterable[str]) -> str:
    return f"{counted(count, 'late row')} ({', '.join(sorted(uids))})"
