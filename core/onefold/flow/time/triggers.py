"""When windows fire, as users write it: triggers that are there, and triggers of one's own."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us
from onefold.flow.time.clocks import END

WindowClock: TypeAlias = Literal["event", "processing"]

_EXACT, _NOTHING = Context(prec=160), timedelta()  # the longest decimals have 76 digits


class Firing(enum.Enum):
    """What a trigger answers. PURGE empties a window: its state and its timers stay until it closes."""

    CONTINUE = enum.auto()
    FIRE = enum.auto()
    PURGE = enum.auto()
    FIRE_AND_PURGE = enum.auto()


CONTINUE, FIRE, PURGE, FIRE_AND_PURGE = Firing


class WindowBounds(NamedTuple):
    """The times of a window: from the start up to, not including, the end, in microseconds since 1970. Windows of all
    time and of numbers of rows begin and end with all time."""

    start_us: int
    end_us: int


class WindowState:
    """What is remembered of a window until it closes: plain Python values by name, of the trigger and of the function.
    Where sessions become one, sums are added, and of what was `put` the later session's stays."""

    def __init__(self, values: dict[str, tuple[bool, Any]]) -> None:
        self.values = values  # whether it is a sum, and what it is

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, (False, default))[1]

    def put(self, name: str, value: Any) -> None:
        self.values[name] = False, value

    def add(self, name: str, amount: Any) -> Any:
        """Returns the sum."""
        self.values[name] = True, self.get(name, 0) + amount
        return self.values[name][1]

    def merge(self, later: WindowState) -> None:
        """Take in what is remembered of a session that begins later."""
        for name, (is_sum, value) in later.values.items():
            (self.add if is_sum else self.put)(name, value)


class WindowContext(Protocol):
    """What triggers and functions see of a window.

    time_us       the row's time; of a call without a row the timer's
    watermark_us  the one by which the epoch's rows are judged; in calls at its end that of the end
    now_ms        the epoch's time
    new_rows      how many rows have come since the window fired last, with this one
    has_ended     whether the watermark has come to the window's end, of a session beyond it
    """

    window: WindowBounds
    time_us: int
    watermark_us: int
    now_ms: int
    new_rows: int
    has_ended: bool
    state: WindowState

    @property
    def key_state(self) -> dict[str, Any]:
        """As `state`, of the key, for good; a dict."""
        ...

    def on_event_time(self, time_us: int) -> None:
        """Have `Trigger.on_event_time` called once the watermark has come to that time."""
        ...

    def on_processing_time(self, time_ms: int) -> None:
        """Have `Trigger.on_processing_time` called with the first epoch of that time or a later one."""
        ...


class Trigger(ABC):
    """A trigger of one's own: subclass it. It is one for all windows: what it remembers of a window is in `at.state`.

    Timers are called at an epoch's end, by their times. A firing by a timer of event time has the rows that are older
    than it, so that it does not depend on where epochs end. Timers later than the window's close are dropped with it.
    """

    @abstractmethod
    def on_row(self, row: Any, at: WindowContext) -> Firing:
        """A row has come to the window. It has columns as attributes, and by their names."""

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        """A timer of event time is due: here the window fires at its end."""
        return FIRE if time_us == at.window.end_us else CONTINUE

    def on_processing_time(self, time_ms: int, at: WindowContext) -> Firing:
        """A timer of processing time is due."""
        del time_ms, at
        return CONTINUE

    def on_merge(self, at: WindowContext) -> None:
        """A session has other bounds now, and its state is that of all that became one. Timers of the ends that they
        had are gone. A trigger that does not have this method has no sessions."""
        del at

    def __str__(self) -> str:
        return f"by {type(self).__name__}"


class AtEnd(Trigger):
    """Once the watermark has come to the window's end, and again at the end of each epoch that brings late rows."""

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        at.on_event_time(at.window.end_us)
        return CONTINUE

    def on_processing_time(self, time_ms: int, at: WindowContext) -> Firing:
        del time_ms
        return FIRE if at.new_rows and not at.has_ended else CONTINUE

    def on_merge(self, at: WindowContext) -> None:
        at.on_event_time(at.window.end_us)


@dataclass(frozen=True)
class Every(AtEnd):
    """At each multiple of the interval from a window's start on, once the watermark has come to it, with the rows that
    are older: for the keys that have new ones among them. And at the end.

    With clock="processing" at the end of the first epoch whose time has come to a multiple of the interval, with all
    rows that there are, for windows that have new ones and have not ended."""

    interval: str
    clock: WindowClock = "event"

    def __str__(self) -> str:
        return f"each {self.interval}{'' if self.clock == 'event' else ' of processing time'}"

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        super().on_row(row, at)
        step_us = self.step_us
        if self.clock == "processing":
            at.on_processing_time((at.now_ms * 1_000 // step_us + 1) * step_us // 1_000)
            return CONTINUE
        begin_us = _begin_us(at.window)
        next_us = (max(at.time_us, at.watermark_us) - begin_us) // step_us * step_us + begin_us + step_us
        if next_us < at.window.end_us:
            at.on_event_time(next_us)
        return CONTINUE

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        is_pane = self.clock == "event" and (time_us - _begin_us(at.window)) % self.step_us == 0
        return FIRE if is_pane else super().on_event_time(time_us, at)

    @property
    def step_us(self) -> int:
        return duration_us(self.interval, "interval")


def _begin_us(window: WindowBounds) -> int:
    """From where intervals count: from 1970 in a window of all time."""
    return 0 if window.start_us == -END else window.start_us


@dataclass(frozen=True)
class EachEpoch(AtEnd):
    """At the end of each epoch, for the keys and windows that got rows in it. And at the end."""

    def __str__(self) -> str:
        return "each epoch"

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        at.on_processing_time(at.now_ms)
        return super().on_row(row, at)


@dataclass(frozen=True)
class AfterRows(AtEnd):
    """At each row that is the `count`-th since the window fired last; sessions that become one add theirs. And at the
    end, where some came since."""

    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise ConfigError("option-value", f"AfterRows({self.count!r:.100}): give a number of rows from 1 on")

    def __str__(self) -> str:
        return f"after {self.count} rows"

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        super().on_row(row, at)
        return FIRE if at.new_rows >= self.count else CONTINUE

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        return super().on_event_time(time_us, at) if at.new_rows else CONTINUE


@dataclass(frozen=True)
class OnDelta(Trigger):
    """At a row whose value in `column` is more than `threshold` from that at the last firing, or of the window's first
    row; rows without a value, and those with NaN, are passed over. And at the end, where rows came since. Sessions have
    none. Values are numbers, and the threshold is one; or timestamps, dates or durations, and it is a timedelta."""

    column: str
    threshold: Any

    def __str__(self) -> str:
        return f"when {self.column} differs by more than {self.threshold}"

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        at.on_event_time(at.window.end_us)
        value, last = row[self.column], at.state.get("$last")
        apart = difference(value, value if last is None else last)
        if apart is None or (last is not None and apart <= self.threshold):
            return CONTINUE
        at.state.put("$last", value)
        return CONTINUE if last is None else FIRE

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        return super().on_event_time(time_us, at) if at.new_rows else CONTINUE


def difference(value: Any, other: Any) -> Any:
    """How far two values are apart: equal ones, infinite ones too, not at all. None where one is none, or NaN."""
    if value is None or other is None or value != value or other != other:
        return None
    if isinstance(value, Decimal):
        return _EXACT.subtract(value, other).copy_abs()
    if isinstance(value, datetime):  # with one zone object Python subtracts what clocks show, with two it does not
        shown = value.replace(tzinfo=None) - other.replace(tzinfo=None)
        return abs(shown - (value.utcoffset() or _NOTHING) + (other.utcoffset() or _NOTHING))
    apart = abs(value - other)
    return apart if apart == apart else 0.0


@dataclass(frozen=True)
class Purging:
    """A trigger whose firings empty the window: as results="discarding"."""

    trigger: Trigger

    def __str__(self) -> str:
        return f"{self.trigger}, purging"


def check_trigger_of(trigger: Any) -> None:
    """Raise ConfigError for what is no trigger, or has a setting that is none."""
    if not isinstance(trigger, Trigger):
        raise ConfigError(
            "option-value",
            f"window: trigger={trigger!r:.100} is none: give Every('10 seconds'), EachEpoch(), AfterRows(100),"
            " OnDelta('column', 3), Purging(...) of one of them, or an instance of a subclass of Trigger",
        )
    if isinstance(trigger, Every) and trigger.clock not in get_args(WindowClock):
        raise ConfigError(
            "option-value", f"Every: clock={trigger.clock!r:.100} is {' or '.join(get_args(WindowClock))}"
        )
    if isinstance(trigger, Every) and trigger.clock == "processing" and trigger.step_us < 1_000:
        raise ConfigError("option-value", f"{trigger}: processing time is of milliseconds: choose a longer interval")


@dataclass(frozen=True)
class Timing:
    """A column that says when a result came: `early`, before the window's end, `on_time` or `late`."""


def timing() -> Timing:
    return Timing()
