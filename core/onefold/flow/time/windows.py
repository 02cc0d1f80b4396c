"""Windows of time, as users write them; and the arithmetic of those that have the same bounds for all keys.

Times are microseconds since 1970, and a window has the times from its start up to, not including, its end. Windows that
overlap share *slices*, so that a row is kept once, whatever the number of its windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us
from onefold.flow.time.calendar import Calendar, calendar_of
from onefold.flow.time.clocks import END
from onefold.flow.time.triggers import WindowClock

if TYPE_CHECKING:
    import numpy as np
    import pyarrow.compute as pc

SLICES_MAX = 10_000
SIZE_US_MAX = 2**60  # some 36,000 years: sums with times stay within 64 bits

T = TypeVar("T", int, "np.ndarray[Any, Any]")


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size, each of which begins where the one before ends: `Tumbling("1 minute")`. They begin at
    multiples of the size since 1970 (UTC), `offset` later: weeks of Mondays are `Tumbling("1 week", offset="4 days")`.

    zone   such as "Europe/Berlin": windows of days, weeks (from Monday), months or years there, from midnight on
    clock  "processing": a row's time is that of the epoch in which it comes
    """

    size: str
    offset: str = "0 seconds"
    zone: str | None = None
    clock: WindowClock = "event"

    def __str__(self) -> str:
        return f"{self.size}{_offset(self.offset)}{_told(self.zone, self.clock)}"


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, one of which begins each `slide`: `Sliding("1 hour", "1 minute")`. A row is in each window
    that has its time; in none where the slide is longer than the size and leaves it out. `zone` and `clock` as
    `Tumbling` has them."""

    size: str
    slide: str
    offset: str = "0 seconds"
    zone: str | None = None
    clock: WindowClock = "event"

    def __str__(self) -> str:
        return f"{self.size} each {self.slide}{_offset(self.offset)}{_told(self.zone, self.clock)}"


@dataclass(frozen=True, eq=False)  # expressions have no equality of their own
class Session:
    """Rows of a key that are at most `gap` apart: `Session("30 minutes")`. The window is from the first of them up to
    the gap after the last. With a column of durations, `Session(pc.field("gap"))`, each row says how far it reaches.
    `clock` as `Tumbling` has it.
    """

    gap: str | pc.Expression
    clock: WindowClock = "event"

    def __str__(self) -> str:
        return f"{self.gap}{_told(None, self.clock)}"


@dataclass(frozen=True)
class Rows:
    """Windows of so many rows of a key, in the order of their arrival: `Rows(100)`. With `slide` the last `count` each
    time when so many have come. What is left comes out when the sources have ended."""

    count: int
    slide: int | None = None

    def __str__(self) -> str:
        return f"{self.count} rows{'' if self.slide is None else f' each {self.slide}'}"


@dataclass(frozen=True)
class Global:
    """One window of each key, for all time. It fires as its trigger says."""

    def __str__(self) -> str:
        return "all time"


@dataclass(frozen=True)
class Sessions:
    """By a gap that is the same for all rows, or in a column of durations."""

    gap_us: int | None
    column: str | None


@dataclass(frozen=True)
class Whole:
    """One window of each key, for all time. One that `is_numbered` numbers its firings, as windows of rows."""

    is_numbered: bool = False


@dataclass(frozen=True)
class Aligned:
    """Windows of `size_us`, of which one begins at `offset_us` and at each multiple of `slide_us` from there. They fire
    each `pane_us` before their end, where that is not 0. With a calendar the times are numbers of its units."""

    size_us: int
    slide_us: int
    offset_us: int
    pane_us: int = field(default=0, repr=False)
    calendar: Calendar | None = field(default=None, repr=False)

    @property
    def slice_us(self) -> int:
        return gcd(self.size_us, self.slide_us, self.pane_us)

    def slice_of(self, us: T) -> T:
        """The start of the slice that has a time."""
        return self.floor(us, self.slice_us)

    def last_end(self, slice_: T) -> T:
        """The end of the last window that begins with a slice or before it: where it is not after the slice's start,
        the slice is in no window."""
        return self.floor(slice_, self.slide_us) + self.size_us

    def ends(self, slice_: int, after: int, up_to: int) -> range:
        """The ends of the windows that have a slice, those above `after` and up to `up_to`."""
        last = self.last_end(slice_)
        first = last - (last - max(slice_, after) - 1) // self.slide_us * self.slide_us
        return range(first, min(last, up_to) + 1, self.slide_us)

    def all_ends(self, slices: Iterable[int], after: int, up_to: int) -> list[int]:
        """Of the windows that have one of the slices, ascending."""
        found: list[int] = []
        for slice_ in sorted(slices):
            found += self.ends(slice_, found[-1] if found else after, up_to)
        return found

    def next_end(self, slices: Iterable[int], after: int) -> int | None:
        """The first end beyond `after` of the windows that have one of the slices, which ascend."""
        ends = (self.ends(slice_, after, END) for slice_ in slices)
        return next((of_slice[0] for of_slice in ends if of_slice), None)

    def floor(self, us: T, step: int) -> T:
        """The last multiple of the step up to there, from the offset on."""
        return (us - self.offset_us) // step * step + self.offset_us


def aligned(window: Tumbling | Sliding, pane_us: int = 0) -> Aligned:
    """Raises ConfigError for what is no window of time, and for one of too many slices."""
    if not isinstance(window, Tumbling | Sliding):
        raise ConfigError(
            "option-value",
            f"window({window!r:.100}) is no window: give Tumbling('1 minute'), Sliding('1 hour', '1 minute'),"
            " Session('30 minutes'), Rows(100) or Global()",
        )
    if window.zone is not None:
        return _of_calendar(window, pane_us)
    size_us = duration_us(window.size, "size")
    slide_us = duration_us(window.slide, "slide") if isinstance(window, Sliding) else size_us
    if not (0 < size_us < SIZE_US_MAX and 0 < slide_us < SIZE_US_MAX):
        raise ConfigError("option-value", f"windows of {window}: let size and slide be longer than nothing")
    found = Aligned(size_us, slide_us, duration_us(window.offset, "offset") % slide_us, pane_us)
    if found.size_us // found.slice_us > SLICES_MAX:
        raise ConfigError(
            "window-slices",
            f"windows of {window} are made of {found.size_us // found.slice_us:,} slices of"
            f" {found.slice_us / 1_000_000:g} s, the greatest that their size and slide are multiples of, and more than"
            f" {SLICES_MAX:,} are too many: choose a slide that divides the size, or a longer one, and a longer"
            " interval of Every(...)",
        )
    return found


def check_clock(clock: object, zone: str | None = None) -> None:
    """Raise ConfigError for what is no clock of windows, and for a zone of processing time."""
    if clock not in get_args(WindowClock) or (clock == "processing" and zone is not None):
        raise ConfigError(
            "option-value", f"windows: clock={clock!r:.100} is event or processing, and with a zone= it is event"
        )


def _of_calendar(window: Tumbling | Sliding, pane_us: int) -> Aligned:
    slide = window.slide if isinstance(window, Sliding) else window.size
    calendar, size, step, begins = calendar_of(window.size, slide, str(window.zone))
    if pane_us or duration_us(window.offset, "offset"):
        raise ConfigError(
            "window-zone", f"windows of {window}: with a zone= there is neither an offset= nor a trigger Every(...)"
        )
    if size > SLICES_MAX:
        raise ConfigError("window-slices", f"windows of {window} are of more than {SLICES_MAX:,} units: choose others")
    return Aligned(size, step, begins, 0, calendar)


def _told(zone: str | None, clock: str) -> str:
    return f"{'' if zone is None else f' in {zone}'}{'' if clock == 'event' else ' of processing time'}"


def _offset(offset: str) -> str:
    return "" if duration_us(offset, "offset") == 0 else f", {offset} later"
