"""The driver's half: hands out roots, and has the sinks prepare what they have as epochs of the ordinary protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import SystemRandom

from onefold.core.positions import Range
from onefold.engine.driver.fleet import DRAIN_S, Fleet, owner_of
from onefold.engine.driver.flow_run import FlowRun
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers
from onefold.engine.mechanisms.ack.tracking import Order, Told, Tracking
from onefold.engine.workers.messages import Begin
from onefold.flow.planning import Planners

TIMEOUT_S = 30.0  # of a root without progress, as Storm's, beside the time between epochs; or half as long again


class _AckFleet(Fleet):
    tracking: Tracking | None = None  # there once it is known where the flow stands

    @property
    def is_late(self) -> bool:
        """Whether the flow was asked to end too long ago."""
        return self._drains_s is not None and time.monotonic() > self._drains_s + DRAIN_S

    def read(self, orders: Iterable[Order]) -> None:
        """Hand them out. A worker that is gone is found when it is looked at."""
        for root, node, split in orders:
            to = self._members[owner_of(split.partition, self._workers)].orders
            to.message(Begin(root, {self._plan.chain_of(node).number: (split,)}, {}))
            with suppress(OSError):
                to.send_all()

    def end(self) -> None:
        super().end()
        if self.tracking is not None:
            self.tracking.restart()

    def _hear(self, told: object) -> None:
        if isinstance(told, Told) and self.tracking is not None:
            self.tracking.hear(told)


class _AckRun(FlowRun):
    _fleet: _AckFleet
    _rotated_s = _epoch_s = 0.0

    def _epochs(self, planners: Planners, writers: Writers, at: ResumePoint, fingerprint: str) -> None:
        begin = at.at.beside(planners.added)
        self._tracking = self._fleet.tracking = Tracking(planners.end, planners.splits, begin, SystemRandom())
        super()._epochs(planners, writers, at, fingerprint)

    def _next(self, planners: Planners, writers: Writers, at: ResumePoint) -> Range | None:
        """Up to where all is done by now; an empty one where that is where the last one has ended."""
        del planners
        writers.look()
        now_s, fleet, tracking, retry = time.monotonic(), self._fleet, self._tracking, self._session.patience.retry
        if not fleet.is_up:  # a run of an epoch launches the workers
            return Range(at.at, tracking.done_at)
        if now_s >= self._rotated_s + (TIMEOUT_S + self._settings.epoch_interval_s) / 2:  # it ends with an epoch
            self._rotated_s = now_s
            fleet.read(tracking.rotate())
        while not self._drains and (roots := retry(tracking.next, "asking how far the sources go")):
            fleet.read(roots)
        is_timed = writers.timer_ms is not None and writers.timer_ms <= time.time_ns() // 1_000_000
        is_time = self._drains or tracking.is_full or now_s >= self._epoch_s + self._settings.epoch_interval_s
        return Range(at.at, tracking.done_at) if is_timed or (is_time and tracking.has_work(at.at)) else None

    def _is_settled(self, writers: Writers, at: ResumePoint) -> bool:
        return super()._is_settled(writers, at) and self._tracking.is_idle and not self._tracking.has_work(at.at)

    def _stops(self, writers: Writers, at: ResumePoint) -> bool:
        """A flow that is asked to end takes what is under way to its end, so that nothing comes again."""
        return self._drains and (self._fleet.is_late or not self._fleet.is_up or self._is_settled(writers, at))

    def _progressed(self) -> None:
        """An epoch may be one of no records: what counts is that some are done since workers have failed."""
        if self._tracking.done_at != self._tracking.restarted_at:
            super()._progressed()

    def _ahead(self, planners: Planners) -> Callable[[Range], Range | None]:
        del planners
        return lambda _: None

    def _pace(self, began_s: float) -> None:
        """Roots are handed out until the next epoch is due."""
        self._tracking.committed()
        self._epoch_s = began_s


FLEET, RUN = _AckFleet, _AckRun
