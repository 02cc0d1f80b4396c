"""One run of a flow in the driver process: starts, recovers, runs epoch after epoch, and ends."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import SinkKind
from onefold.core.errors import ConfigError, Fenced, InDoubt, OnefoldError, OutOfResources, Retriable
from onefold.core.positions import Range
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Outcome
from onefold.core.protocol.runs import refuse_query
from onefold.core.restart import Restart
from onefold.core.source import Source
from onefold.core.waiting import Wait
from onefold.engine.dataflow.alignment import ALIGNED, Alignment
from onefold.engine.dataflow.chains import Plan
from onefold.engine.driver.fleet import Fleet
from onefold.engine.driver.progress import Progress, records_between
from onefold.engine.driver.restarts import NeedsStart, Tracker
from onefold.engine.driver.resume_point import (
    Kept,
    ResumePoint,
    WrittenMarker,
    check_same_mechanism,
    check_workers,
    resume_point,
    with_workers,
)
from onefold.engine.driver.run_status import RunStatus
from onefold.engine.driver.writers import Writers
from onefold.engine.own_process import OwnProcess
from onefold.engine.state import STATE, refuse_in_flight
from onefold.engine.workers.fork_server import ForkServerLost
from onefold.engine.workers.messages import Launch, RestoreFrom
from onefold.flow.graph.nodes import Graph
from onefold.flow.graph.order import check_same_again, in_fixed_order
from onefold.flow.planning import Planners, check_covered, check_replayable, initial_of
from onefold.flow.processing.mechanisms import check_sinks_shown_early, marked, refuse_write_through
from onefold.flow.time.alignment import held
from onefold.flow.time.clocks import ClockStatus
from onefold.store.job.logs import logged_as, note
from onefold.store.job.session import Session

if TYPE_CHECKING:
    from onefold.engine.queries.place import Place
    from onefold.engine.state.rocks.scratch import Scratch

log = logging.getLogger("onefold")

IDLE_S_MIN, IDLE_S_MAX = 0.001, 0.02
SWEEP_EVERY_S = 60.0  # a worker that was given up may prepare something later, whose locks must not stay
AHEAD_RECORDS_MIN = 20_000


@dataclass(frozen=True)
class RunSettings:
    """`onefold.engine.run` says what each is."""

    workers: int
    state: str
    epoch_interval_s: float
    restart: Restart
    on_outcome: Callable[[Outcome], None] | None
    alignment: Alignment = ALIGNED


class FlowRun(RunStatus):
    """`drain` may be called from a signal's handler, or another thread: the flow then ends with the epoch that it runs.
    Where that has failed, it waits for nothing, and ends with the error; where it does not end, it is given up after a
    while. While `is_paused` is set it begins no epoch, but one to come to rest by where that is waited for."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        fleet: Fleet,
        settings: RunSettings,
        state_root: str | None,
        written: WrittenMarker,
        databases: Scratch | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(plan, session, fleet)
        self._settings, self._written = settings, written
        self._state_root = state_root  # None for a flow that keeps neither state nor flights
        self._databases = databases
        self._place = place  # where workers are asked for their state; None where none can be
        self.tracker = Tracker(settings.restart)
        self._sources: dict[int, Source] = {}
        self._in_order: frozenset[int] = frozenset()  # known once the sinks are open
        self._holds = 0  # that there were when the next epoch was planned

    def drain(self) -> None:
        self._drains = True
        self._session.patience.end()
        self._session.holds.let_go()
        self.tracker.end()
        self._fleet.drain()

    def run(self) -> Progress:
        """Until the sources end, or it is drained. Raises the error that no restart helps against: Fenced where another
        process has taken over, whatever else that led to."""
        has_started = False
        with logged_as(pipeline=self._session.name):
            self._sources = self._resolved(self._plan.graph)
            while True:
                try:
                    self._live(has_started)
                except (InDoubt, NeedsStart) as error:  # only a start finds out what took effect, or opens sinks
                    self._fleet.end()
                    delay_s = self.tracker.failed()
                    if delay_s is not None:
                        log.warning("flow %r starts again in %.1f s: %s", self._session.name, delay_s, error)
                    if delay_s is None or not self.tracker.hold(delay_s):
                        ended = error if isinstance(error, InDoubt) else error.retyped(Retriable)
                        raise (self._session.taken_over(error) or ended) from error
                    has_started = True
                except ForkServerLost:
                    raise Retriable(
                        "fork-server-lost",
                        f"the process that forks the workers of flow {self._session.name!r} has ended, killed for one"
                        " by a machine without memory, and only a new driver has another. Start the flow again",
                    ) from None
                except OnefoldError as error:
                    fenced = None if isinstance(error, Fenced) else self._session.taken_over(error)
                    if fenced is None:
                        raise
                    raise fenced from error
                else:
                    self._fleet.stop()
                    self.progress.end()
                    if (fenced := self._session.taken_over()) is not None:  # since its last epoch, and nothing failed
                        raise fenced
                    return self.progress

    def _live(self, has_started: bool) -> None:
        """From a start of the protocol, with its recovery, to the end of the flow."""
        session, self._fleet.aligned = self._session, False
        session.holds.is_at_rest = False  # it is not known yet what an earlier process has left on its way
        facts = session.facts()
        refuse_query(facts, session.name)
        check_same_mechanism(facts, self._plan.mechanism)
        check_workers(facts, self._settings.workers)
        check_covered(session.name, self._sources.values(), facts)
        sinks = [writing.sink for _, writing in self._plan.graph.writings()]
        check = partial(check_replayable, session.name, self._sources.values(), sinks)
        session.patience.retry(check, "asking the sinks what they guarantee")
        if self._state_root is not None:
            from onefold.engine.state.participant import note_again  # only for state

            again = partial(note_again, self._state_root, session.name, facts)
            session.patience.retry(again, "reading the checkpoint")
        session.patience.retry(lambda: self._written.check(facts, session.ledgers), "reading the checkpoint")
        planners = Planners(self._sources, facts.frozen, session.journal)
        try:
            begin = facts.frozen
            if begin is None:
                begin = session.patience.retry(planners.initial, "asking where the sources begin")
            initial = initial_of(session.name, self._sources.values(), facts, begin)
            started = session.start(initial, goes_on=has_started)
            session.drive(session.lifecycle.sweep())
            written = self._plan.graph.schemas()
            if self._state_root is not None:
                written = {**written, STATE: pa.schema([])}
            alignment = self._settings.alignment.kind
            fingerprint = marked(session.open_sinks(written), self._plan.mechanism, self._doubles)
            check_sinks_shown_early(session.name, self._plan.mechanism, session.write_through)
            self._check_writers()
            refuse_write_through(alignment, session.write_through)
            check_same_again(self._plan.graph, session.write_through)
            self._in_order = in_fixed_order(self._plan.graph, session.write_through)
            if self._in_order:
                fingerprint = with_workers(fingerprint, self._settings.workers)
            at = resume_point(session.facts(), started, self._kept, self._plan.has_state)
            if self._in_order:
                refuse_in_flight(session.name, at.handles, "Nothing was written")
            added = partial(planners.begin_added, session.name, at.at, session.pin)
            session.patience.retry(added, "asking where the sources begin")
            writers = Writers(
                self._plan,
                self._fleet,
                planners,
                self.tracker,
                at,
                self._launch,
                self._ahead(planners),
                session.patience.progressed,
            )
            if self._place is not None:
                tell = partial(self._place.tell, self._generation)
                session.patience.retry(tell, "writing into the checkpoint")
            writers.launch()
            self.started_at_s = time.time()
            self._epochs(planners, writers, at, fingerprint)
        finally:
            planners.close()

    def _epochs(self, planners: Planners, writers: Writers, at: ResumePoint, fingerprint: str) -> None:
        wait: Wait | None = None
        swept_s = time.monotonic()
        self._session.holds.is_at_rest = self._is_at_rest(writers, at)
        while not self._stops(writers, at):
            if time.monotonic() - swept_s >= SWEEP_EVERY_S:
                self._session.drive(self._session.lifecycle.sweep())
                if (fenced := self._session.taken_over()) is not None:
                    raise fenced
                swept_s = time.monotonic()
            self._holds = self._session.holds.times
            if not self.is_paused:
                span = self._next(planners, writers, at)
            else:
                span = self._to_rest(planners, writers, at) if self._session.holds.is_waited_for else None
            if span is None:
                if not self.is_paused and planners.is_done(at.at) and self._is_settled(writers, at):
                    break
                wait = wait or Wait(float("inf"), IDLE_S_MIN, IDLE_S_MAX)
                wait.pause()
                continue
            wait, began_s = None, time.monotonic()
            before, at = at, self._epoch(planners, writers, at, span, fingerprint)
            if at is not before:
                self._pace(began_s)
        if not self._is_at_rest(writers, at):
            self._epoch(planners, writers, at, self._to_rest(planners, writers, at), fingerprint)

    def _is_at_rest(self, writers: Writers, at: ResumePoint) -> bool:
        """Whether the last epoch's state is of its positions, and no less and no more: without alignment a snapshot has
        of what is read ahead, which a restart would read again."""
        return not at.in_flight and (writers.ahead is None or self._settings.alignment.kind != "at_least_once")

    def _to_rest(self, planners: Planners, writers: Writers, at: ResumePoint) -> Range:
        """The range of the epoch that comes to rest: of what is read already, or was begun, and no more."""
        self._fleet.aligned = True
        if at.until is not None:
            return Range(at.at, at.until)
        planners.leave(at.at)
        return writers.ahead or Range(at.at, at.at)

    def _stops(self, writers: Writers, at: ResumePoint) -> bool:  # noqa: ARG002 - for another mechanism
        """Whether it was drained, and no further epoch is run for that."""
        return self._drains

    def _is_settled(self, writers: Writers, at: ResumePoint) -> bool:  # noqa: ARG002 - for another mechanism
        """Whether nothing is left to do of what was read."""
        return not writers.waits_to_know

    def _progressed(self) -> None:
        """The restarts before count no more."""
        self.tracker.completed()

    def _next(self, planners: Planners, writers: Writers, at: ResumePoint) -> Range | None:
        """The range of the next epoch; an empty one where only a timer is due; None where there is nothing to do."""
        if self._plan.graph.alignments and writers.waits_to_know:
            writers.look()
            if writers.waits_to_know and writers.timer_ms is None:
                return None
        planners.held = self._held(writers.clocks or {})
        self._fleet.aligned = self._session.holds.is_asked
        if at.until is not None or writers.ahead is not None:
            return writers.ahead or Range(at.at, present(at.until, "it ends there"))
        end = self._session.patience.retry(lambda: planners.end(at.at), "asking how far the sources go")
        self._fleet.aligned |= at.in_flight and end == at.at and planners.is_done(at.at)
        # What is in flight alone is an epoch, too; but not of event time, while a limit holds records back.
        if end != at.at or (at.in_flight and not (writers.clocks and planners.cut())):
            return Range(at.at, end)
        writers.look()
        is_due = writers.timer_ms is not None and writers.timer_ms <= time.time_ns() // 1_000_000
        # What is left unread for a limit is no silence: an epoch without records would take it for that.
        is_held = bool(writers.clocks) and bool(planners.cut())
        ends = writers.has_open_clocks and planners.is_done(at.at)
        return Range(at.at, end) if ends or (is_due and not is_held) else None

    def _held(self, clocks: Mapping[str, ClockStatus]) -> dict[int, set[str]]:
        """By the nodes that read them, the partitions that wait for others."""
        graph, found = self._plan.graph, dict[int, set[str]]()
        ahead = held(graph.alignments, {each for clock in clocks.values() for each in clock.reached})
        for node, _ in graph.readings():
            if names := {name for uid, name in ahead if uid == node.uid}:
                found[node.number] = names
        return found

    def _epoch(
        self, planners: Planners, writers: Writers, at: ResumePoint, span: Range, fingerprint: str
    ) -> ResumePoint:
        """Where it ends. Where the flow was held since it was planned it is not begun, and to be planned again: what
        came meanwhile would be left unread, and taken for silence."""
        session = self._session
        session.check_counted(span)
        request = EpochRequest(
            range=span,
            query_id=session.name,
            batch_id=at.epoch + 1,  # tells empty ranges apart
            fingerprint=fingerprint,
            sinks=session.names,
            write_through=session.write_through,
        )
        with session.lock:
            if session.holds.times != self._holds:
                return at
            session.holds.is_at_rest = False
            protocol = session.lifecycle.run_epoch(request, runs_max=sys.maxsize)
            outcome = session.drive(writers.observing(protocol), writers)
            now = ResumePoint.after(outcome.record)
            writers.decided(now)
            session.holds.is_at_rest = self._is_at_rest(writers, now)
        if not self._written.is_there:
            store_id = present(session.started, "an epoch is run after a start").store_id
            session.patience.retry(lambda: self._written.keep(store_id), "writing into the checkpoint")
        note(epoch=outcome.record.epoch)
        self.operators = self.traffic.acknowledged(outcome.record.epoch)
        self.steps = present(session.clock.last, "an epoch was run").with_prepare(writers.prepared_s)
        if bad := writers.bad.total():
            log.warning("epoch %d: unreadable records: %d", outcome.record.epoch, bad)
        self.bad += writers.bad
        self._progressed()
        planners.completed(now.at)
        self.progress.count(outcome.record, lambda: planners.behind(now.at), writers.clocks)
        if self._settings.on_outcome is not None:
            own = OwnProcess()
            try:
                self._settings.on_outcome(outcome)
            finally:
                own.check()
        return now

    def _ahead(self, planners: Planners) -> Callable[[Range], Range | None]:
        """What is read while the epoch before it is processed and decided: only where there is much to catch up with,
        since what comes later than that plan has to wait for one more epoch. Behind a small epoch the sources are not
        even asked, since its decision would wait for the answer."""

        def is_much(span: Range) -> bool:
            return records_between(span.start, span.end) >= AHEAD_RECORDS_MIN

        def plan_ahead(behind: Range) -> Range | None:
            if self._drains or self.is_paused or self._session.holds.is_asked:
                return None
            if self._settings.epoch_interval_s > 0 or not is_much(behind):
                return None
            if self._plan.graph.alignments:
                return None  # which partitions wait for others, the epoch says that it would be behind
            try:
                span = Range(behind.end, planners.end(behind.end))
            except Retriable:
                return None  # asked again for the epoch itself
            return span if is_much(span) else None

        return plan_ahead

    def _pace(self, began_s: float) -> None:
        left_s = began_s + self._settings.epoch_interval_s - time.monotonic()
        wait = Wait(left_s, IDLE_S_MAX, IDLE_S_MAX) if left_s > 0 else None
        while wait is not None and wait.left_s > 0 and not (self._drains or self._session.holds.is_waited_for):
            wait.pause()

    def _launch(self, at: ResumePoint, guarded: bool) -> None:
        state = None
        if self._state_root is not None:
            name, backend, scratch = self._session.name, self._settings.state, None
            if self._databases is not None:
                self._databases.empty()
                scratch = str(self._databases.folder)
            state = RestoreFrom(
                self._state_root, name, backend, self._generation, at.handles, scratch, at.epoch, at.timestamp_ms
            )
        sinks = {node.number: writing.sink for node, writing in self._plan.graph.writings()}
        queries = None if self._place is None else self._place.folder
        settings = guarded, self._in_order, queries, self._settings.alignment
        self._fleet.launch(Launch(0, self._settings.workers, (), self._sources, sinks, state, *settings))

    @property
    def _kept(self) -> Kept | None:
        """How the state's own notes are asked for an epoch's snapshots; None for a flow that keeps none."""
        if self._state_root is None:
            return None
        from onefold.engine.state.participant import noted  # only for state

        return partial(noted, self._state_root, self._session.name)

    @property
    def _doubles(self) -> bool:
        """Whether a subtask has several channels that do not wait for each other."""
        if self._settings.alignment.kind != "at_least_once":
            return False
        from onefold.flow.explaining import told_of_alignment  # with the drawing: for this alone

        _, doubles = told_of_alignment(self._plan.graph, "at_least_once", self._settings.workers)
        return doubles

    @property
    def _generation(self) -> int:
        return present(self._session.started, "workers are launched after a start").generation.number

    def _resolved(self, graph: Graph) -> dict[int, Source]:
        """The sources with their schemas, as the flow's first start found them."""
        return {node.number: graph.resolved(node, self._session.pin) for node, _ in graph.readings()}

    def _check_writers(self) -> None:
        """Raises ConfigError; OutOfResources where a sink prepares, whose server may have more room again later."""
        for _, writing in self._plan.graph.writings():
            limit = writing.sink.writers_max()
            if limit is not None and limit < self._settings.workers:
                kind = OutOfResources if writing.sink.guarantee().kind is SinkKind.TWO_PHASE else ConfigError
                raise kind(
                    "too-many-workers",
                    f"sink {writing.sink.name!r} takes at most {limit} writers at once, and the flow has"
                    f" {self._settings.workers} workers: run it with workers={limit}, or make room where it writes to",
                )
