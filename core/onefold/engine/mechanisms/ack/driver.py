"""The driver's half: hands out roots, and has the sinks prepare what they have as epochs of the ordinary protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import SystemRandom
from typing import cast

from onefold.core.contract import TaskId
from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.engine.driver.fleet import DRAIN_S, Fleet, owner_of
from onefold.engine.driver.flow_run import FlowRun
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers
from onefold.engine.mechanisms.ack.tracking import Root, Told, Tracking
from onefold.engine.workers.messages import Begin
from onefold.flow.planning import Planners
from onefold.flow.time.clocks import SourceEnd

__all__ = ["FLEET", "RUN"]

TIMEOUT_S = 30.0  # of a root, as Storm's; half as long again at most
LAUNCHES_MAX = 3  # at one place, before sources are read with care


class _AckFleet(Fleet):
    tracking: Tracking | None = None  # known once it is known where the flow stands

    def begin(self, splits: Mapping[int, Sequence[Split]], ends: Mapping[int, SourceEnd], task: TaskId | None) -> int:
        """An epoch, whose records were handed out before."""
        del splits, ends
        cast("Tracking", self.tracking).flush(self._runs + 1, self._workers)
        return super().begin({}, {}, task)

    def read(self, roots: Iterable[Root]) -> None:
        """Hand them out. A worker that is gone is found when it is looked at."""
        for root, node, split in roots:
            member = self._members[owner_of(split.partition, self._workers)]
            member.orders.message(Begin(root, {self._plan.chain_of(node).number: (split,)}, {}))
            with suppress(OSError):
                member.orders.send_all()

    def end(self) -> None:
        super().end()
        self._waits: dict[int, bool] = {}
        if self.tracking is not None:
            self.tracking.restart()

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait before a sink."""
        return any(self._waits.values())

    def _hear(self, index: int, told: object) -> None:
        assert isinstance(told, Told) and self.tracking is not None
        self._waits[index] = told.waits
        self.tracking.hear(told)


class _Asked:
    """The planners, whose sources are waited for."""

    def __init__(self, planners: Planners, ask: Callable[..., object]) -> None:
        self._planners, self._ask = planners, ask

    def end(self, start: Positions) -> Positions:
        return cast("Positions", self._ask(lambda: self._planners.end(start), "asking how far the sources go"))

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]:
        found = self._ask(lambda: self._planners.splits(span), "asking how the sources are split")
        return cast("Mapping[int, Sequence[Split]]", found)


class _AckRun(FlowRun):
    _fleet: _AckFleet
    _launched_at: Positions | None = None
    _launches = 0
    _drained_s: float | None = None

    def _epochs(self, planners: Planners, writers: Writers, at: ResumePoint, fingerprint: str) -> None:
        asked = _Asked(planners, self._session.patience.retry)
        self._tracking = self._fleet.tracking = Tracking(asked, at.at, SystemRandom())
        self._rotated_s = self._epoch_s = time.monotonic()
        super()._epochs(planners, writers, at, fingerprint)

    def _next(self, planners: Planners, writers: Writers, at: ResumePoint) -> Range | None:
        """The range up to where all is done, which is where the last one ended as long as that is not committed."""
        del planners
        writers.look()
        now_s, fleet, tracking = time.monotonic(), self._fleet, self._tracking
        if fleet.is_up and now_s >= self._rotated_s + TIMEOUT_S / 2:
            self._rotated_s = now_s
            fleet.read(tracking.rotate())
        if fleet.is_up and not self._drains:
            fleet.read(tracking.next())
        is_timed = writers.timer_ms is not None and writers.timer_ms <= time.time_ns() // 1_000_000
        is_time = self._drains or tracking.is_full or now_s >= self._epoch_s + self._settings.epoch_interval_s
        is_due = is_timed or (is_time and tracking.has_work(at.at, fleet.has_waiting))
        return Range(at.at, tracking.done_at) if is_due or not fleet.is_up else None

    def _epoch(
        self, planners: Planners, writers: Writers, at: ResumePoint, span: Range, fingerprint: str
    ) -> ResumePoint:
        now = super()._epoch(planners, writers, at, span, fingerprint)
        self._tracking.committed()
        self._epoch_s = time.monotonic()
        return now

    def _stops(self, at: ResumePoint) -> bool:
        """A flow that is asked to end ends where its positions are, so that nothing comes again."""
        if not self._drains:
            return False
        self._drained_s = self._drained_s or time.monotonic()
        left_s = self._drained_s + DRAIN_S - time.monotonic()
        return left_s < 0.0 or not self._fleet.is_up or self._is_done(at)

    def _is_settled(self, writers: Writers, at: ResumePoint) -> bool:
        return super()._is_settled(writers, at) and self._is_done(at)

    def _is_done(self, at: ResumePoint) -> bool:
        return self._tracking.is_idle and not self._tracking.has_work(at.at, self._fleet.has_waiting)

    def _progressed(self) -> None:
        """An epoch may be one of no records: what counts is that records are done since workers have failed."""
        if self._tracking.done_at != self._launched_at:
            super()._progressed()

    def _launch(self, at: ResumePoint, guarded: bool) -> None:
        del guarded  # of one epoch, which may read nothing
        done_at = at.at if self._fleet.tracking is None else self._fleet.tracking.done_at
        self._launches = self._launches + 1 if done_at == self._launched_at else 1
        self._launched_at = done_at
        super()._launch(at, self._launches > LAUNCHES_MAX)

    def _ahead(self, planners: Planners) -> Callable[[Range], Range | None]:
        del planners
        return lambda _: None

    def _pace(self, began_s: float) -> None:
        """Roots are handed out meanwhile."""


FLEET, RUN = _AckFleet, _AckRun
