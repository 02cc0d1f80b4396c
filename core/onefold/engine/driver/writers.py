"""Answers the protocol's RunWriters: has the workers process an epoch's range, and collects what they prepared."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol as Port
from typing import TypeVar

from onefold.core.contract import Committable, EpochRecord, TaskId
from onefold.core.errors import OnefoldError, OutOfResources, Terminal, WorkLost
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import Pause, Protocol
from onefold.core.source import Split
from onefold.core.writing.dead_letters import Policy
from onefold.engine.dataflow.chains import Plan
from onefold.engine.driver.restarts import NeedsStart, Tracker, WorkerFailed, judged
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.workers.messages import Done, Ready
from onefold.flow.time.clocks import END, ClockStatus, SourceEnd
from onefold.store.job.session import task_of

log = logging.getLogger("onefold")
T = TypeVar("T")


class Workers(Port):
    """What `Fleet` is. A test has others."""

    def begin(
        self, splits: Mapping[int, Sequence[Split]], ends: Mapping[int, SourceEnd], task: TaskId | None
    ) -> int: ...

    def open(self, run: int, task: TaskId) -> None: ...

    def collect(self, run: int) -> list[Done]: ...

    def completed(self, epoch: int, timestamp_ms: int) -> None: ...

    def look(self) -> Ready | None: ...

    def end(self) -> None: ...

    @property
    def worked_s(self) -> float: ...


class Splitting(Port):
    """What `Planners` does for a range. A test has others."""

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]: ...

    def source_end(self, node: int, at: Positions) -> SourceEnd: ...


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A range that the workers read before its epoch is open."""

    run: int
    span: Range


class Writers:
    """Workers that stand where the last decided epoch ended; `launch` starts them there, from that epoch's state.

    They take an epoch's range once. Whatever happens before the next epoch begins, from a worker that is lost to a
    decision that fails, they are ended, and started again from the last decided epoch. `plan_ahead` says which range
    they may read once they are through with the epoch's, which it is given, before the next is open; None for none.
    `progressed` is told for how long workers did their work that a server then ended.
    """

    def __init__(
        self,
        plan: Plan,
        fleet: Workers,
        planners: Splitting,
        tracker: Tracker,
        resume_point: ResumePoint,
        launch: Callable[[ResumePoint, bool], None],
        plan_ahead: Callable[[Range], Range | None],
        progressed: Callable[[float], None],
    ) -> None:
        self._plan, self._fleet, self._planners, self._tracker = plan, fleet, planners, tracker
        self._resume_point, self._launch, self._plan_ahead = resume_point, launch, plan_ahead
        self._progressed = progressed
        self._lost: OnefoldError | None = None  # why what the workers have prepared last does not count
        self._at: Positions | None = None  # where the workers stand; None where none run
        self._epoch = 0  # the one that they have run last
        self._ahead: _Ahead | None = None
        self._failed: tuple[float, OnefoldError] | None = None  # why, and for how long, the next start is held back
        self._is_asked = any(node.queryable for node in plan.graph.nodes)
        self._guarded = False  # what kills a parser is found, and is a bad record
        self.bad = Counter[str]()  # records of the epoch that could not be read, by their source's `on_error`
        self.timer_ms: int | None = None  # when the next timer is due
        # Of the operators that go by event time, by uid; None until workers have restored them.
        self.clocks: Mapping[str, ClockStatus] | None = None
        self.prepared_s = 0.0  # how long preparing the epoch took the slowest worker

    def __call__(self, record: EpochRecord) -> tuple[Committable, ...]:
        """Raises WorkerFailed where the epoch may run again, after a while; Terminal where it may not; OutOfResources
        where a source or a sink does not get at its server, which the protocol waits for; NeedsStart where the sinks
        must be opened anew."""
        self._account_for_lost_work(record)
        try:
            done = self._run(record)
        except OnefoldError as error:
            failed = self._given_up(error, record.epoch)
            if failed is error:
                raise
            raise failed from error
        except BaseException:
            self._end()
            raise
        self.bad = self._counted_bad(record, done)
        self.prepared_s = max(each.prepared_s for each in done)
        timers = [each.timer_ms for each in done if each.timer_ms is not None]
        self.timer_ms, self.clocks = min(timers, default=None), _joined([each.clocks for each in done])
        return tuple(committable for each in done for committable in each.committables)

    def look(self) -> None:
        """While there is nothing to read: the timers that the workers have restored. Where a worker has failed
        meanwhile, an epoch is due now, which starts them again."""
        try:
            restored = self._fleet.look()
        except OnefoldError as error:
            failed = self._given_up(error, self._resume_point.epoch + 1)
            if not isinstance(failed, WorkerFailed | OutOfResources):
                raise failed from error
            self.timer_ms = 0
        else:
            if not self._epoch and restored is not None:
                self.timer_ms, self.clocks = restored.timer_ms, restored.clocks

    def _given_up(self, error: OnefoldError, epoch: int) -> OnefoldError:
        """End the workers, who cannot go on with the epoch. Returns what the error is to the driver."""
        self._end()
        failed = judged(error)
        if isinstance(failed, WorkerFailed):
            self._hold_back(failed, epoch)
            self._guarded |= failed.code == "worker-lost"
        elif isinstance(failed, OutOfResources):
            self._progressed(self._fleet.worked_s)
        return failed

    def observing(self, protocol: Protocol[T]) -> Protocol[T]:
        """The same protocol, whose errors are seen on the way: a prepared epoch that runs again, because its work was
        lost, counts as a restart. Else the writers would prepare, without end, what expires before it is decided."""
        self._lost = None
        effect = next(protocol)
        try:
            while True:
                try:
                    answer = yield effect
                except OnefoldError as error:
                    if isinstance(error, WorkLost):
                        self._lost = error
                    elif isinstance(effect, Pause):  # it has waited for as long as there is patience
                        self._lost = error.retyped(NeedsStart)
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def launch(self) -> None:
        """Start the workers. Ahead of the first epoch they restore their state while the sources are asked for it."""
        self._launch(self._resume_point, self._guarded)
        self._at = self._resume_point.at

    def decided(self, resume_point: ResumePoint) -> None:
        """The epoch that they have run is complete. Those that read with care do so no longer."""
        self._resume_point = resume_point
        if self._guarded:
            self._guarded = False
            self._end()
        elif self._is_asked:
            self._fleet.completed(resume_point.epoch, resume_point.timestamp_ms)

    @property
    def ahead(self) -> Range | None:
        """What they read already, of the next epoch."""
        return None if self._ahead is None else self._ahead.span

    def _run(self, record: EpochRecord) -> list[Done]:
        task, ahead = task_of(record), self._ahead
        is_next = self._at == record.range.start and self._epoch != record.epoch
        if not is_next or (ahead is not None and ahead.span != record.range):
            self._end()
            ahead = None
        if self._at is None:
            failed, self._failed = self._failed, None
            if failed is not None and not self._tracker.hold(failed[0]):
                raise failed[1].retyped(NeedsStart)
            self.launch()
        if ahead is None:
            run = self._begin(record.range, task)
        else:
            run = ahead.run
            self._fleet.open(run, task)
        failpoint("engine:begun")
        span = self._plan_ahead(record.range)
        self._ahead = None if span is None else _Ahead(self._begin(span, None), span)
        done = self._fleet.collect(run)
        self._at, self._epoch = record.range.end, record.epoch
        return done

    @property
    def waits_to_know(self) -> bool:
        """Whether workers have still to say what event time it is."""
        return self.clocks is None and any(node.keeps_event_time for node in self._plan.graph.nodes)

    @property
    def has_open_clocks(self) -> bool:
        """Whether an operator does not know yet that its sources have ended."""
        return any(clock.watermark_us != END for clock in (self.clocks or {}).values())

    def _account_for_lost_work(self, record: EpochRecord) -> None:
        lost, self._lost = self._lost, None
        if isinstance(lost, NeedsStart):
            raise lost
        if lost is not None:
            self._hold_back(lost, record.epoch)

    def _begin(self, span: Range, task: TaskId | None) -> int:
        splits = {self._plan.chain_of(node).number: tuple(of) for node, of in self._planners.splits(span).items()}
        timed = [chain for chain in self._plan.chains if chain.highest is not None]
        ends = {chain.number: self._planners.source_end(chain.head.number, span.end) for chain in timed}
        return self._fleet.begin(splits, ends, task)

    def _end(self) -> None:
        self._fleet.end()
        self._at = self._ahead = None

    def _hold_back(self, error: OnefoldError, epoch: int) -> None:
        """The next start, for a while. Raises Terminal where there is none."""
        delay_s = self._tracker.give_up(epoch, error)
        if delay_s is None:
            raise Terminal(
                "restarts-exhausted",
                f"epoch {epoch} of flow {self._plan.graph.flow!r} was given up after the restarts that `restart=`"
                f" allows: {error.message}. Nothing of it was decided. Correct the cause, and start the flow again",
            ) from error
        log.warning("epoch %d: the workers start again in %.1f s: %s", epoch, delay_s, error)
        self._failed = delay_s, error

    def _counted_bad(self, record: EpochRecord, done: list[Done]) -> Counter[str]:
        """Raises BadRecord where all workers together have too many bad records of a source."""
        found = Counter[str]()
        for chain in self._plan.chains:
            if chain.source is not None and (policy := Policy.of(chain.source, None)) is not None:
                bad = sum(each.bad.get(chain.number, 0) for each in done)
                policy.refuse(task_of(record), bad)
                found[chain.source.on_error] += bad
        return found


def _joined(clocks: Sequence[Mapping[str, ClockStatus]]) -> dict[str, ClockStatus]:
    """Those that are furthest behind, where barriers overtake; else all workers have them alike, but for the rows that
    came too late there."""
    of_uids = {uid: [each[uid] for each in clocks] for uid in clocks[0]}
    return {
        uid: replace(
            min(of, key=lambda each: -END if each.watermark_us is None else each.watermark_us),
            late=sum(each.late for each in of),
        )
        for uid, of in of_uids.items()
    }
