"""What a flow has done so far, and the line of the log that says so, at most one a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from onefold.core.contract import EpochRecord
from onefold.core.errors import OnefoldError
from onefold.core.positions import Positions
from onefold.core.values.plain import counted
from onefold.engine.state import STATE

__all__ = ["Progress", "records_between"]

epochs_log = logging.getLogger("onefold.epochs")

EVERY_S = 1.0
REST = 9  # times as long as the sources took to say how far they go: no epoch is run meanwhile


class Progress:
    """Epochs and rows of one run of a flow. `rows` are those that its sinks got."""

    def __init__(self, flow: str) -> None:
        self.epochs = self.rows = 0
        self.last: EpochRecord | None = None
        self._flow = flow
        self._told_s = time.monotonic()
        self._next_s = self._told_s + EVERY_S
        self._told_rows = self._told_epochs = 0
        self._behind: Callable[[], Mapping[str, int]] | None = None

    def count(self, record: EpochRecord, behind: Callable[[], Mapping[str, int]]) -> None:
        """An epoch is complete. `behind` asks the sources how much there is beyond it, by what it is counted in."""
        self.epochs += 1
        self.rows += sum(committable.rows for committable in record.manifest if committable.sink != STATE)
        self.last, self._behind = record, behind
        if time.monotonic() >= self._next_s:
            self._tell()

    def end(self) -> None:
        if self.epochs > self._told_epochs:
            self._tell()

    def _tell(self) -> None:
        assert self.last is not None and self._behind is not None
        now_s, rows = time.monotonic(), self.rows - self._told_rows
        try:
            found = self._behind()
            behind = f"{' and '.join(counted(number, unit) for unit, number in found.items())} behind"
        except OnefoldError:
            behind = "how far behind is unknown"
        epochs_log.info(
            "flow %r: epoch %d, %s in %s, %s rows/s, %s",
            self._flow,
            self.last.epoch,
            counted(rows, "row"),
            counted(self.epochs - self._told_epochs, "epoch"),
            f"{rows / (now_s - self._told_s):,.0f}",
            behind,
        )
        self._told_s, self._told_rows, self._told_epochs = now_s, self.rows, self.epochs
        asked_s = time.monotonic() - now_s
        self._next_s = now_s + asked_s + max(EVERY_S, REST * asked_s)


def records_between(start: Positions, end: Positions) -> int:
    """How many records are between, of partitions whose positions are numbers."""
    before = dict(start.items)
    return sum(
        at - begin for name, at in end.items if isinstance(at, int) and isinstance(begin := before.get(name, 0), int)
    )
