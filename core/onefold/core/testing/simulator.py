"""Runs the protocol over model sinks and strikes it at every step, until it rests; then checks the invariants.

Exhaustive within its bound and without chance: the same configuration gives the same schedules. The driver, the
protocol and recovery are the production code; Spark, the store and the sinks are models.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from onefold.core.contract import Committable, EpochRecord, Generation, SinkKind, TaskId
from onefold.core.driver import Driver
from onefold.core.effects import Effect, EpochRequest, Pause
from onefold.core.errors import Fenced, InDoubt, OnefoldError, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.protocol import Initial, epoch, start, sweep
from onefold.core.testing.faults import Crash, Fault, Points, StruckDriver, applies
from onefold.core.testing.invariants import Evidence, Glimpse, violations
from onefold.core.testing.model_store import ModelStore
from onefold.core.testing.models import ModelLastResourceSink, ModelSink, ModelTwoPhaseSink

__all__ = ["CONFIGURATIONS", "Failure", "Plan", "Report", "Run", "explore", "simulate"]

PIPELINE = "model"
LIVES_MAX = 10
FAILURES_MAX = 10
BATCHES: tuple[dict[str, int], ...] = (
    {"t/0": 2, "t/1": 1},
    {},
    {"t/1": 2},
)  # how far each batch goes on; the second is empty
NOTHING: Mapping[Fault, tuple[Fault, ...]] = {}
CONFIGURATIONS: dict[str, tuple[SinkKind, ...]] = {
    "two-phase": (SinkKind.TWO_PHASE,),
    "last-resource": (SinkKind.LAST_RESOURCE,),
    "two-phase + last-resource": (SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE),
    "two two-phase": (SinkKind.TWO_PHASE, SinkKind.TWO_PHASE),
}


@dataclass(frozen=True)
class Plan:
    """Which sinks, and what strikes at which step (the first is 1).

    `patience` is how often the driver asks again before its query fails.
    """

    sinks: tuple[SinkKind, ...]
    faults: tuple[tuple[int, Fault], ...] = ()
    patience: int = 3
    duplicate_attempts: bool = True


@dataclass
class Run:
    """What became of one schedule: what went wrong, the steps it passed, and what struck where."""

    violations: list[str]
    steps: list[str]
    struck: Counter[tuple[Fault, str]]


class World:
    """Spark's checkpoint, the store and the sinks: what outlives a process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.points = Points(dict(plan.faults), self._strike)
        self.store = ModelStore()
        self.sinks: dict[str, ModelSink] = {}
        for number, kind in enumerate(plan.sinks):
            model = ModelTwoPhaseSink if kind is SinkKind.TWO_PHASE else ModelLastResourceSink
            self.sinks[f"sink-{number}"] = model(f"sink-{number}", self._reached)
        self.offsets: dict[int, Positions] = {}
        self.commits: set[int] = set()
        self.first_start: Positions | None = None
        self.lives = self.attempts = 0
        self.inherited: Generation | None = None  # the newest generation before this life
        self.sweeping: Iterator[Effect] | None = None
        self.glimpses: set[Glimpse] = set()
        self.complaints: list[str] = []

    def rest(self) -> None:
        """Live until a life ends of its own accord: all is done, or a newer driver has taken over."""
        while self.lives < LIVES_MAX:
            self.lives += 1
            self.inherited, self.sweeping = self.store.newest, None
            try:
                self._live()
            except Crash:
                continue
            except (Retriable, InDoubt):
                continue  # the query failed; its supervisor starts it again
            except Fenced:
                assert Fault.TAKEOVER in self.points.plan.values(), "fenced, but by whom?"
                return
            except (OnefoldError, AssertionError) as error:
                self.complaints.append(f"a life ended with {type(error).__name__}: {error}")
            return
        self.complaints.append(f"no rest after {LIVES_MAX} lives")

    def _live(self) -> None:
        """One process: recover, then run batches as Spark does, the last planned one again if it isn't committed."""
        last_resource = next((n for n, s in self.sinks.items() if s.kind is SinkKind.LAST_RESOURCE), None)
        driver = StruckDriver(PIPELINE, self.store, self.sinks, self._pause, last_resource)
        driver.points = self.points
        names = tuple(self.sinks)
        latest = Positions.of({"t/0": self.lives})  # the source has grown since the last life
        started = driver.run(start(names, Initial(latest)))
        assert started.start is not None
        planned = max(self.offsets, default=0)
        for batch in range(planned + (planned in self.commits), len(BATCHES)):
            begin = self.offsets[batch - 1] if batch else started.start
            if batch not in self.offsets:
                self._reached("before:PlanBatch")
                if batch == 0:
                    self.first_start = begin
                self.offsets[batch] = Positions.of(Counter(dict(begin.items)) + Counter(BATCHES[batch]))
                self._reached("after:PlanBatch")
            request = EpochRequest(Range(begin, self.offsets[batch]), "query", batch, "job", names)
            driver.run(epoch(started.generation, started.store_id, request), self._run_writers)
            self._reached("before:CommitBatch")
            self.commits.add(batch)
            self._reached("after:CommitBatch")

    def _run_writers(self, record: EpochRecord) -> tuple[Committable, ...]:
        accepted = []
        for sink in record.sinks:
            for rows in _records(record.range).values():
                first = self._attempt(self.sinks[sink], record, rows)
                accepted.append(first)
                if self.plan.duplicate_attempts:
                    self._attempt(self.sinks[sink], record, rows)
        return tuple(c for c in accepted if c is not None)

    def _attempt(self, sink: ModelSink, record: EpochRecord, rows: list[str]) -> Committable | None:
        self.attempts += 1
        attempt = uuid.UUID(int=self.attempts)
        writer = sink.writer(TaskId(PIPELINE, record.generation, record.epoch, record.timestamp_ms, attempt))
        if rows:
            writer.write(pa.record_batch({"id": rows}))
        committable = writer.prepare()
        self._reached("inside:RunWriters")
        return committable

    def _pause(self, pause: Pause) -> None:
        if pause.attempt > self.plan.patience:
            raise pause.because

    def _reached(self, name: str) -> None:
        for sink in self.sinks.values():
            if sink.guarantee().atomic_epoch and sink.committed:
                self._look(sink)
        self.points.reached(name)

    def _look(self, sink: ModelSink) -> None:
        """What a reader of the sink sees of its newest epoch just now."""
        newest = max(work.committable.epoch for work in sink.committed.values())
        rows = sum(len(w.rows) for w in sink.committed.values() if w.committable.epoch == newest)
        whole = sum(c.rows for c in self.store.epochs[newest].manifest if c.sink == sink.name)
        self.glimpses.add(Glimpse(sink.name, newest, rows, whole))

    def _strike(self, fault: Fault, point: str) -> None:
        match fault:
            case Fault.TAKEOVER:
                mine = self.inherited, self.sweeping
                self.rest()
                self.inherited, self.sweeping = mine
            case Fault.LOSE_WORK:
                for sink in self.sinks.values():
                    if point == "after:RunWriters" or isinstance(sink, ModelLastResourceSink):
                        sink.lose_prepared()
            case Fault.SWEEP_HALTS | Fault.SWEEP if self.store.newest not in (None, self.inherited):
                assert self.store.newest is not None
                self.sweeping = self.sweeping or self._sweep(self.store.newest)
                next(self.sweeping, None)
                if fault is Fault.SWEEP:
                    deque(self.sweeping, maxlen=0)
                    self.sweeping = None

    def _sweep(self, generation: Generation) -> Iterator[Effect]:
        """The sweep on a timer, one effect at a time."""
        driver = Driver(PIPELINE, self.store, self.sinks, self._pause)
        protocol, answer = sweep(generation, self.sinks), None
        with suppress(StopIteration):
            while True:
                effect = protocol.send(answer)
                answer = driver._perform(effect, None)
                yield effect

    def evidence(self) -> Evidence:
        facts, begin = self.store.facts(PIPELINE), self.first_start
        assert begin is not None

        def records(last: EpochRecord | None) -> frozenset[Hashable]:
            up_to = Range(begin, last.range.end) if last else Range(begin, begin)
            return frozenset(r for rows in _records(up_to).values() for r in rows)

        sinks = self.sinks.values()
        return Evidence(
            due=records(facts.complete),
            decided=records(facts.last),
            shown={name: sink.shown() for name, sink in self.sinks.items()},
            initial=begin,
            epochs=self.store.history(),
            leftovers=tuple(work.committable for sink in sinks for work in sink.prepared.values()),
            committed=tuple(work.committable for sink in sinks for work in sink.committed.values()),
            transitions=tuple(self.store.transitions),
            decisions=tuple(self.store.decisions),
            glimpses=tuple(self.glimpses),
        )


def simulate(plan: Plan) -> Run:
    """Run one schedule to rest and judge it."""
    world = World(plan)
    world.rest()
    if Fault.TAKEOVER in world.points.plan.values():
        world.rest()  # what a zombie left is the next recovery's to remove
    found = [*world.complaints]
    if world.commits != set(range(len(BATCHES))):
        found.append(f"only the batches {sorted(world.commits)} of {len(BATCHES)} were completed")
    elif world.store.facts(PIPELINE).complete is None or world.store.history()[-1].range.end != world.offsets[2]:
        found.append("the pipeline rests before the end of its source")
    if world.first_start is not None:
        found += violations(world.evidence())
    return Run(found, world.points.names, world.points.struck)


@dataclass(frozen=True)
class Failure:
    plan: Plan
    steps: tuple[str, ...]
    violations: tuple[str, ...]


@dataclass
class Report:
    """How many schedules ran, how often each fault struck at each step, and what failed."""

    schedules: int = 0
    struck: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def count(self, plan: Plan) -> Run:
        run = simulate(plan)
        self.schedules += 1
        self.struck += run.struck
        if run.violations and len(self.failures) < FAILURES_MAX:
            at = tuple(f"{n} {run.steps[n - 1]} {fault.value}" for n, fault in plan.faults)
            self.failures.append(Failure(plan, at, tuple(run.violations)))
        return run


def explore(
    sinks: tuple[SinkKind, ...], then: Mapping[Fault, tuple[Fault, ...]] = NOTHING, pairs_in_batches: int = 1
) -> Report:
    """Strike with every fault at every step; where `then` says so, strike again at every later step up to the next
    batch that is committed: `{CRASH: (CRASH,)}` crashes at every step of the recovery too. Only faults in the first
    `pairs_in_batches` batches are followed by another."""
    report = Report()
    undisturbed = report.count(Plan(sinks))
    for step, name in enumerate(undisturbed.steps, start=1):
        pairs = undisturbed.steps[: step - 1].count("after:CommitBatch") < pairs_in_batches
        for fault in Fault:
            if not applies(fault, name, SinkKind.LAST_RESOURCE in sinks):
                continue
            errs = fault in (Fault.RETRIABLE, Fault.IN_DOUBT)
            for patience in (3, 0) if errs else (3,):
                first = report.count(Plan(sinks, ((step, fault),), patience))
                for second in _until_committed(first.steps, step) if pairs else ():
                    for next_fault in then.get(fault, ()):
                        report.count(Plan(sinks, ((step, fault), (second, next_fault)), patience))
    return report


def _until_committed(steps: list[str], after: int) -> Iterator[int]:
    """The steps after the fault up to the first batch that Spark commits again."""
    for number, name in enumerate(steps[after:], start=after + 1):
        yield number
        if name == "after:CommitBatch":
            return


def _records(span: Range) -> dict[str, list[str]]:
    """The source records of each partition in a range."""
    first = dict(span.start.items)
    return {
        partition: [f"{partition}@{offset}" for offset in range(int(first.get(partition, 0)), int(end))]
        for partition, end in span.end.items
    }
