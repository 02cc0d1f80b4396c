"""What a flow has done so far: as a line of the log, at most one a second, and as one that moves on a terminal."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from onefold.core.contract import EpochRecord
from onefold.core.errors import OnefoldError
from onefold.core.positions import Positions
from onefold.core.values.plain import counted
from onefold.engine.state import STATE
from onefold.flow.time.clocks import END, ClockStatus
from onefold.flow.time.told import ToldClock, told_late, told_lowest, told_moment
from onefold.store.job.logs import Console

log = logging.getLogger("onefold")
epochs_log = logging.getLogger("onefold.epochs")

EVERY_S = 1.0
MOVES_S = 0.5
SEEN = 10  # moves that rows a second are of
FAR_MS = 86_400_000  # that a watermark is ahead of the epoch's time
REST = 9  # times as long as the sources took to say how far they go: no epoch is run meanwhile


class Progress:
    """Epochs and rows of one run of a flow. `rows` are those that its sinks got, `late` those that came too late, by
    the uids of the operators that dropped them or put them aside."""

    def __init__(self, flow: str) -> None:
        self.epochs = self.rows = 0
        self.last: EpochRecord | None = None
        self._flow = flow
        self._told_s = time.monotonic()
        self._next_s = self._told_s + EVERY_S
        self._told_rows = self._told_epochs = 0
        self._behind: Callable[[], Mapping[str, int]] | None = None
        self._said_behind = ""
        self._clocks: Mapping[str, ClockStatus] = {}
        self._warned = set[str]()
        self.late = Counter[str]()
        self._told_late = 0

    def count(
        self,
        record: EpochRecord,
        behind: Callable[[], Mapping[str, int]],
        clocks: Mapping[str, ClockStatus] | None = None,
    ) -> None:
        """An epoch is complete. `behind` asks the sources how much there is beyond it, by what it is counted in;
        `clocks` are of the operators that go by event time, by their uids."""
        self.epochs += 1
        self.rows += sum(committable.rows for committable in record.manifest if committable.sink != STATE)
        self.last, self._behind, self._clocks = record, behind, clocks or {}
        self.late.update({uid: clock.late for uid, clock in self._clocks.items() if clock.late})
        self._warn(record.timestamp_ms)
        if time.monotonic() >= self._next_s:
            self._tell()

    def end(self) -> None:
        if self.epochs > self._told_epochs:
            self._tell()

    def line(self, rows_per_s: float, state: str, because: str = "") -> str:
        """For a terminal."""
        epoch = "" if self.last is None else f", epoch {self.last.epoch}, {rows_per_s:,.0f} rows/s"
        behind = f", {self._said_behind}" if self._said_behind else ""
        behind += "".join(f", {clock}" for clock in self._told_clocks())
        return f"flow {self._flow!r}: {state}{epoch}{behind}{because and f': {because}'}"

    def clocks(self) -> dict[str, ToldClock]:
        """Of the operators that go by event time, by their uids, at the end of the last epoch. Any thread may ask."""
        last = self.last
        if last is None:
            return {}
        return {uid: ToldClock.of(each, last.timestamp_ms, self.late[uid]) for uid, each in self._clocks.items()}

    def _told_clocks(self) -> Iterator[str]:
        """The one that is furthest behind: with several operators, by its name."""
        if self.last is not None and self._clocks:
            yield told_lowest(self._clocks, self.last.timestamp_ms)

    def _told_of_late(self) -> Iterator[str]:
        """Those since the last line, and which operators had some so far."""
        if late := self.late.total() - self._told_late:
            yield told_late(late, self.late)

    def _warn(self, now_ms: int) -> None:
        """Once for each operator: whatever comes after such a record is late."""
        for uid, clock in self._clocks.items():
            us = clock.watermark_us
            if us is not None and us != END and us > (now_ms + FAR_MS) * 1_000 and uid not in self._warned:
                self._warned.add(uid)
                log.warning(
                    "flow %r: the watermark of %s is %s, over a day ahead: records have times in the future, and all"
                    " others are late until then. Filter them before they get into the source, or let its watermarks"
                    " leave them out",
                    self._flow,
                    uid,
                    told_moment(us),
                )

    def _tell(self) -> None:
        assert self.last is not None and self._behind is not None
        now_s, rows = time.monotonic(), self.rows - self._told_rows
        try:
            found = self._behind()
            behind = f"{' and '.join(counted(number, unit) for unit, number in found.items())} behind"
        except OnefoldError:
            behind = "how far behind is unknown"
        self._said_behind = behind
        epochs_log.info(
            "flow %r: epoch %d, %s in %s, %s rows/s, %s",
            self._flow,
            self.last.epoch,
            counted(rows, "row"),
            counted(self.epochs - self._told_epochs, "epoch"),
            f"{rows / (now_s - self._told_s):,.0f}",
            ", ".join((behind, *self._told_clocks(), *self._told_of_late())),
        )
        self._told_s, self._told_rows, self._told_epochs = now_s, self.rows, self.epochs
        self._told_late = self.late.total()
        asked_s = time.monotonic() - now_s
        self._next_s = now_s + asked_s + max(EVERY_S, REST * asked_s)


@contextmanager
def moving_line(console: Console | None, progress: Progress, state: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Shows on a terminal, as long as the block runs, where the flow stands. `state` is a word, and why where that says
    too little."""
    if console is None or not (console.is_terminal and console.is_alone):
        yield
        return
    over = threading.Event()
    seen = deque([(time.monotonic(), progress.rows)], maxlen=SEEN)

    def move() -> None:
        while not over.wait(MOVES_S):
            now_s, rows = time.monotonic(), progress.rows
            before_s, before = seen[0]
            seen.append((now_s, rows))
            console.show(progress.line((rows - before) / (now_s - before_s), *state()))

    moving = threading.Thread(target=move, name="onefold-progress", daemon=True)
    console.has_line = True
    moving.start()
    try:
        yield
    finally:
        over.set()
        moving.join()
        console.has_line = False
        console.show("")


def records_between(start: Positions, end: Positions) -> int:
    """How many records are between, of partitions whose positions are numbers."""
    before = dict(start.items)
    return sum(
        at - begin for name, at in end.items if isinstance(at, int) and isinstance(begin := before.get(name, 0), int)
    )
