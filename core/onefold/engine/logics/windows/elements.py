"""Windows whose rows are kept one by one, for triggers, evictors and functions that states cannot answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from onefold.core.checks import present
from onefold.core.errors import BadRecord, ConfigError
from onefold.engine.logics.logic import Input, Output
from onefold.engine.logics.reducing import PENDING_ROWS_MAX
from onefold.engine.logics.windows.calendars import slices_of
from onefold.engine.logics.windows.contents import Contents, OpenWindow, Row
from onefold.engine.logics.windows.window_functions import Fired, WindowFunction, batch_of
from onefold.engine.logics.windows.window_logic import Numbers, WindowLogic, gaps_us
from onefold.engine.state.codec import encode
from onefold.engine.state.state_backend import Key, StateTables
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Windowing
from onefold.flow.processing.groups import by_key
from onefold.flow.processing.rows import RowCollector, row_type, values_of
from onefold.flow.time.clocks import END, Clocks
from onefold.flow.time.evictors import Evictor
from onefold.flow.time.told import moment
from onefold.flow.time.triggers import CONTINUE, FIRE, FIRE_AND_PURGE, PURGE, AtEnd, Firing, WindowBounds
from onefold.flow.time.windows import Aligned, Sessions, Whole

_EVER = 2 * END  # later than the time of any row


class ElementsLogic(WindowLogic[Windowing]):
    """Implements Clocked and EventTimed. The trigger is called for each row as it comes, and for timers at the epoch's
    end: first for those of event time, in their order. Aggregates of what fires are made at once for all of a batch."""

    def __init__(
        self, node: Node, operator: Windowing, given: pa.Schema, clocks: Callable[[], Clocks], backend: StateTables
    ) -> None:
        super().__init__(node, operator, clocks, backend)
        elements = present(operator.elements, "rows are kept one by one")
        self._late_side, self._evictor, self._given = elements.late, elements.evictor, given
        self._is_at_once = operator.takes_back or elements.processor is not None  # by what is remembered by then
        self._trigger, self._row = operator.trigger or AtEnd(), row_type(given.names)
        self._windows, self._is_of_sessions = operator.windows, isinstance(operator.windows, Sessions)
        self._contents = Contents(self._uid, backend)
        self._function = WindowFunction(node, operator, elements.processor, given)
        self._rows = RowCollector(node.name, {None: self._schema})
        self._fired: list[Fired] = []

    def restored(self) -> None:
        super().restored()
        self._contents.restored()

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        times, late = self._times_us(batch, self._operator), list[int]()
        of, timed = self._windows, batch
        reach = times + gaps_us(of, batch) if isinstance(of, Sessions) else self._placed(times)
        for name, values in (("$place", np.arange(len(batch))), ("$reach", reach), ("$at", times)):
            timed = timed.append_column(name, pa.array(values))
        keys: Iterable[Key] = [()]
        of_each: Iterable[list[Any]] = [[*values_of(timed)]]
        if self._width:
            keys, of_each = by_key(timed, self._operator.key)
        for key, rows in zip(keys, of_each, strict=True):
            of_key = self._contents.of_key(key)
            for *values, place, reach_us, time_us in rows:
                if not self._of_row(key, of_key, tuple(values), time_us, reach_us):
                    late.append(place)
        if late:
            yield from self._told_late(batch.take(pa.array(sorted(late))), self._late_side)
        yield from self._results()
        if self._contents.fresh > PENDING_ROWS_MAX:
            self._contents.save()

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        del before
        closed, contents = self._closes_us, self._contents
        for at, window in contents.due(contents.event, self._limit(now)):
            if at in window.event_us:
                window.event_us.remove(at)
                if at <= window.window.end_us + self._operator.lateness_us:
                    self._call(window, self._trigger.on_event_time, at, at, now)
        for at, window in contents.due(contents.processing, self._now_ms + 1):
            if at in window.processing_ms:
                window.processing_ms.remove(at)
                self._call(window, self._trigger.on_processing_time, at, _EVER, now)
        yield from self._results()
        for _, window in contents.due(contents.closing, self._limit(closed)):
            self._see(window, window.window.end_us, now)
            self._function.clear(window)
            contents.replace(window, [])
            contents.leave(window)
        contents.save()

    def timer_ms(self) -> int | None:
        timers = [super().timer_ms(), self._contents.processing.next]
        event_us = self._contents.event.next
        if event_us is not None and event_us < self._limit(self._watermark_us):
            timers.append(0)  # a timer has registered it
        return min((ms for ms in timers if ms is not None), default=None)

    def _next_due_us(self) -> int | None:
        at = self._contents.event.next
        return None if at is None else at + self._is_of_sessions

    def _limit(self, us: int) -> int:
        """Before which a window has ended, where time has come to there: at its end a session still takes a row."""
        return us if self._is_of_sessions else us + 1

    def _of_row(
        self, key: Key, of_key: dict[WindowBounds, OpenWindow], values: Row, time_us: int, reach_us: int
    ) -> bool:
        """Whether it is of a window that is open; or of none at all. `reach_us` is its end, or its slice."""
        is_in_none = False
        if self._is_of_sessions:
            windows = self._session(of_key, key, time_us, reach_us)
        else:
            bounds = self._bounds[reach_us]
            windows, is_in_none = [], not bounds
            for each in (each for each in bounds if each.end_us > self._closed_us):
                windows.append(of_key.get(each) or self._contents.open(key, each))
        for window in windows:
            self._contents.add(window, (*values, time_us))
            self._see(window, time_us, self._watermark_us)
            answer = self._trigger.on_row(self._row(values), window)
            if answer is not CONTINUE:
                self._answer(window, answer, _EVER, "late" if window.has_ended else "early")
        return bool(windows) or is_in_none

    def _placed(self, times: Numbers) -> Numbers:
        """The slices of rows. Finds the bounds of all windows that have each of them; those for all time have one."""
        if not isinstance(of := self._windows, Aligned):
            self._bounds = {0: [WindowBounds(-END, END)]}
            return np.zeros_like(times)
        slices, begin = slices_of(of, times), int if of.calendar is None else of.calendar.begin_us
        ends = {each: of.ends(each, -END, END) for each in np.unique(slices).tolist()}
        self._bounds = {at: [WindowBounds(begin(end - of.size_us), begin(end)) for end in ends[at]] for at in ends}
        return slices

    def _session(
        self, of_key: dict[WindowBounds, OpenWindow], key: Key, time_us: int, reach_us: int
    ) -> list[OpenWindow]:
        """The one that a row is of, as it is now; none where the row is late."""
        if time_us < self._closed_us and not any(start <= time_us <= end for start, end in of_key):
            return []
        near = sorted(each for each in of_key if each.start_us <= reach_us and time_us <= each.end_us)
        of_all = [*near, WindowBounds(time_us, reach_us)]
        bounds = WindowBounds(min(start for start, _ in of_all), max(end for _, end in of_all))
        if near == [bounds]:
            return [of_key[bounds]]
        parts = [of_key[each] for each in near]
        for part in parts:
            self._contents.leave(part)
        made = self._contents.open(key, bounds)
        for part in parts:
            made.take_in(part)
        if parts:
            self._see(made, time_us, self._watermark_us)
            self._trigger.on_merge(made)
        return [made]

    def _see(self, window: OpenWindow, time_us: int, watermark_us: int) -> None:
        window.time_us, window.watermark_us, window.now_ms = time_us, watermark_us, self._now_ms
        window.has_ended = window.window.end_us < self._limit(watermark_us)

    def _call(
        self, window: OpenWindow, call: Callable[[int, OpenWindow], Firing], at: int, up_to_us: int, now: int
    ) -> None:
        """For a timer, with the rows that are older than that."""
        self._see(window, at, now)
        end_us = window.window.end_us
        is_early = up_to_us < end_us or not window.has_ended
        when = "late" if end_us < self._limit(self._watermark_us) else "early" if is_early else "on_time"
        self._answer(window, call(at, window), up_to_us, when)

    def _answer(self, window: OpenWindow, answer: Any, up_to_us: int, when: str) -> None:
        if type(answer) is not Firing:
            raise ConfigError(
                "trigger-answer",
                f"the trigger of {self._uid!r}, {self._trigger}, answers {answer!r:.100}: it answers CONTINUE, FIRE,"
                " PURGE or FIRE_AND_PURGE",
            )
        is_fired = answer in (FIRE, FIRE_AND_PURGE)
        if is_fired:
            self._fire(window, up_to_us, when)
        if answer in (PURGE, FIRE_AND_PURGE) or (is_fired and self._operator.results == "discarding"):
            self._contents.replace(window, [row for row in self._contents.rows(window) if row[-1] >= up_to_us])

    def _fire(self, window: OpenWindow, up_to_us: int, when: str) -> None:
        of_all, evictor = self._contents.rows(window), self._evictor
        kept = rows = [row for row in of_all if row[-1] < up_to_us]
        window.new_rows = min(window.new_rows, len(of_all) - len(rows))
        if evictor is not None and rows:
            is_kept = self._keeps(evictor, rows)
            kept = [row for row, stays in zip(rows, is_kept, strict=True) if stays]
            if len(kept) < len(rows):  # younger ones stay where they are among them
                stay = iter(is_kept)
                self._contents.replace(window, [row for row in of_all if row[-1] >= up_to_us or next(stay)])
        seen = rows if evictor is not None and evictor.after else kept
        if not seen:
            return
        window.emissions += 1
        self._fired.append(Fired(window, seen, window.emissions, when))
        if self._is_at_once:
            self._collect()

    def _keeps(self, evictor: Evictor, rows: list[Row]) -> list[bool | None]:
        found = evictor.keeps(batch_of(self._given, rows), pa.array([row[-1] for row in rows], pa.int64()))
        if not isinstance(found, pa.BooleanArray) or len(found) != len(rows):
            answer = f"{len(found)} booleans" if isinstance(found, pa.BooleanArray) else f"a {type(found).__name__}"
            raise ConfigError(
                "evictor-answer",
                f"the evictor of {self._uid!r}, {type(evictor).__name__}, answers {answer} for {len(rows)} rows: it"
                " answers an Arrow array of booleans, one for each row",
            )
        kept: list[bool | None] = found.to_pylist()
        return kept

    def _results(self) -> Iterator[Output]:
        self._collect()
        yield from self._rows.take()
        sides, self._function.sides = self._function.sides, []
        yield from sides

    def _collect(self) -> None:
        """Make results of what has fired."""
        fired, self._fired = self._fired, []
        for each, results in zip(fired, self._function.results(fired) if fired else (), strict=True):
            rows = [(*each.window.key, *self._columns(each), *result) for result in results]
            back = self._taken_back(each, rows) if self._operator.takes_back else []
            if back is None:
                each.window.emissions -= 1
                continue
            for is_back, row in [*((True, row) for row in back), *((False, row) for row in rows)]:
                of = self._operator
                further = [each.emission] * of.fires_again + [is_back] * of.takes_back
                self._rows.add((*row, *further, *[each.when] * (of.timing is not None)))

    def _taken_back(self, fired: Fired, rows: list[Row]) -> list[Row] | None:
        """The rows of before that hold no longer; None where there is nothing new."""
        before, fired.window.out = fired.window.out, rows
        if self._operator.results == "retracting":
            return None if encode(before) == encode(rows) else before
        return [row for row in before if row[self._width] != rows[0][self._width]] if rows else before

    def _columns(self, fired: Fired) -> Row:
        if self._operator.by_number:
            return (fired.emission - 1,)
        if isinstance(self._windows, Whole):
            return ()
        found = tuple(moment(us) for us in fired.window.window)
        if None in found:
            raise BadRecord("event-time-range", "a window's time is beyond the years that Python has: filter its rows")
        return found if getattr(self._time, "tz", None) else tuple(each.replace(tzinfo=None) for each in found if each)
