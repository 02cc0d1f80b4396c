"""A small flow with the protocol, in memory: two partitions, a keyed processor with timers, and sinks.

What it does is a job of `flow_jobs`.

The plan, the subtasks, the driver's `Writers`, the protocol and its coordinator are the production code; the store, the
sinks, the state's storage and the channels are models. At each point of a run something else may happen than what comes
first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from onefold.core.checks import require
from onefold.core.contract import EpochState, SinkKind
from onefold.core.errors import InDoubt, OnefoldError, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import EpochRequest, Pause, Protocol, ReadClock
from onefold.core.protocol.epoch import Initial
from onefold.core.restart import Restart
from onefold.core.source import Part, Split
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.core.testing.simulator.models import MODELS, ModelTwoPhaseSink
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow.chains import plan
from onefold.engine.driver.restarts import NeedsStart, Tracker
from onefold.engine.driver.resume_point import ResumePoint, resume_point
from onefold.engine.driver.writers import Writers
from onefold.engine.state import STATE
from onefold.engine.testing.flow_jobs import DEFAULT_JOB, JOBS, OF_ALIGNMENT, ROWS, FlowJob
from onefold.engine.testing.model_fleet import THEIR_WORK_LANDS_LATER, WORKERS_DIE, FleetSubject, ModelFleet
from onefold.engine.testing.model_state import MAX_PARALLELISM, ModelSnapshots
from onefold.flow.graph.nodes import Edge, Graph, Node
from onefold.flow.graph.operators import Reading, Writing
from onefold.flow.graph.order import in_fixed_order
from onefold.flow.processing.mechanisms import Mechanism
from onefold.flow.time.clocks import SourceEnd
from onefold.store.job.lifecycle import Lifecycle

FLOW = "model"
LIVES_MAX = 12
FEW = 3
DRIVER_DIES, WORKERS_RUN_ON, LATE_WORK_LANDS = "the driver dies", "the workers run on", "late work lands"
STRIKES = frozenset({DRIVER_DIES, WORKERS_DIE, THEIR_WORK_LANDS_LATER})
T = TypeVar("T")
Pick = Callable[[Sequence[str]], int]


class CrashError(BaseException):
    """The driver dies, and its workers with it."""


@dataclass(frozen=True)
class ModelSource:
    """Each record is a part of its own, and a partition's records up to a cut are a split. It is its own planner."""

    job: FlowJob = field(compare=False)
    name: str = "t"
    on_error: str = "fail"
    bad_records_max: int = 0

    def end(self, start: Positions) -> Positions:
        span = self.job.next_range(start)
        return start if span is None else span.end

    def splits(self, span: Range) -> list[Split]:
        begin = dict(span.start.items)
        return [Split(name, (begin[name], end)) for name, end in span.end.items if end != begin[name]]

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        del guarded
        none = empty_batch(BAD_COLUMNS)
        for at in range(*split.range):
            yield Part(self.job.rows(split.partition, at), none)


@dataclass
class _Splits:
    job: FlowJob
    ends_at: Callable[[int, int], int]
    planned: int = 0  # the furthest cut that was planned

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]:
        return {0: ModelSource(self.job).splits(span)}

    def source_end(self, node: int, at: Positions) -> SourceEnd:
        del node
        cut = self.job.cut_of(at)
        self.planned = max(self.planned, cut)
        return SourceEnd(
            tuple(self.job.records), self.job.ends and self.ends_at(cut, self.planned) == len(self.job.cuts)
        )


@dataclass
class WorldOutcome:
    """What became of a run: what is wrong, led by the invariant's name, what could have happened at each point, and
    the points where it was not the first of that, as a script. `seen` is what else there was."""

    wrong: list[str]
    options: list[tuple[str, ...]]
    taken: dict[int, int]
    job: str
    seen: tuple[str, ...] = ()

    def points(self) -> tuple[str, ...]:
        """What happened in the place of what comes first, for people: of many, what struck."""
        names = {point: self.options[point][option] for point, option in self.taken.items()}
        struck = {point: name for point, name in names.items() if name in STRIKES}
        shown = tuple(f"{point} {name}" for point, name in (names if len(names) <= FEW else struck).items())
        return shown if len(names) <= FEW else (*shown, f"{len(names) - len(struck)} steps in another order")


class FlowWorld:
    """`pick` says at each point by its number which of its options is taken; `job` is one of `JOBS` or `OF_ALIGNMENT`,
    by its name."""

    MECHANISM: ClassVar[Mechanism] = "barriers"
    FLEET: ClassVar[type[ModelFleet]] = ModelFleet

    def __init__(
        self,
        kinds: Sequence[SinkKind],
        pick: Pick,
        subject: FleetSubject,
        job: str = DEFAULT_JOB,
    ) -> None:
        self._pick = pick
        self._job, self._job_name, self._subject = {**JOBS, **OF_ALIGNMENT}[job], job, subject
        self._now_ms = 0  # when the epoch is planned
        self.options: list[tuple[str, ...]] = []
        self.taken: dict[int, int] = {}
        self._is_disturbed = True
        self.store = ModelStore()
        named = {f"sink-{number}": kind for number, kind in enumerate(kinds)}
        self.sinks: dict[str, Any] = {name: MODELS[kind](name) for name, kind in named.items()}
        self.state = ModelTwoPhaseSink(STATE)
        source: Any = ModelSource(self._job)
        nodes = (Node(0, Reading(source, self._job.watermarks), (), ROWS, (), "t"), *self._job.nodes)
        by_node = dict(enumerate(self.sinks.values(), start=len(nodes)))
        last = (Edge(nodes[-1].number),)
        writings = (Node(number, Writing(sink), last, None) for number, sink in by_node.items())
        self.plan = plan(Graph(FLOW, (*nodes, *writings), MAX_PARALLELISM), mechanism=self.MECHANISM)
        snapshots = ModelSnapshots(self.state)
        shows_early = [name for name, kind in named.items() if kind is SinkKind.WRITE_THROUGH]
        in_order = in_fixed_order(self.plan.graph, shows_early)
        workers, alignment = self._job.workers[0], self._job.alignment
        self.fleet = self.FLEET(self.plan, workers, by_node, snapshots, subject, self.choose, in_order, alignment)
        self.fleet.is_complete = lambda epoch: all(
            (row := each.ledger()) is not None and row.epoch >= epoch for each in self.committers.values()
        )
        self.lives = 0

    @property
    def committers(self) -> dict[str, Any]:
        return {**self.sinks, STATE: self.state}

    def choose(self, options: Sequence[str]) -> str:
        """What happens at the next point, and what comes first at the end, when nothing is struck any more."""
        if not self._is_disturbed:
            return options[0]
        option = self._pick(options)
        if option:
            self.taken[len(self.options)] = option
        self.options.append(tuple(options))
        return options[option]

    def run(self) -> WorldOutcome:
        """To the end of the source, and once more, so that nothing is left of what died."""
        try:
            while not self._live():
                self.fleet.end()
                self.lives += 1
                self.fleet.workers = self._job.workers[self.lives % len(self._job.workers)]
                require(self.lives < LIVES_MAX, "a flow comes to its end")
            for land in self.fleet.late:
                land()
            self._is_disturbed = False
            self._live()
        except Exception as error:
            wrong = [f"comes-to-rest: {type(error).__name__}: {error}"]
        else:
            wrong = self._wrong()
        return WorldOutcome(wrong, self.options, self.taken, self._job_name, self._seen())

    def _live(self) -> bool:
        """One driver, from its start to the source's end: False where it died, or gave up."""
        life = Lifecycle(FLOW, tuple(self.committers))
        kinds = {name: sink.kind for name, sink in self.committers.items()}
        merging = next((name for name, kind in kinds.items() if kind is SinkKind.LAST_RESOURCE), None)
        driver = Coordinator(FLOW, self.store, self.committers, _out_of_patience, merging)
        writes = tuple(name for name, kind in kinds.items() if kind is SinkKind.WRITE_THROUGH)
        try:
            started = self._drive(driver, life.start(Initial(self._job.begin)))
            self._drive(driver, life.sweep())
            kept = (lambda _: ()) if self.plan.has_state else None
            at = resume_point(self.store.facts(FLOW), started, kept)
            tracker = Tracker(Restart(strategy="fixed_delay", delay_s=1e-9, attempts=LIVES_MAX))
            splits = _Splits(self._job, self._subject.ends_at)
            launch = lambda here, _guarded: self.fleet.launch(here.handles)  # noqa: E731
            writers = Writers(self.plan, self.fleet, splits, tracker, at, launch, self._ahead, lambda _for_s: None)
            writers.launch()
            self._begin(at)
            while (span := self._range(at, writers)) is not None:
                self._now_ms = self._job.time_ms(span, writers.timer_ms)
                self.store.be_at(self._now_ms)
                request = EpochRequest(span, FLOW, at.epoch + 1, "job", tuple(self.committers), writes)
                outcome = self._drive(driver, writers.observing(life.run_epoch(request, LIVES_MAX)), writers)
                at = ResumePoint.after(outcome.record)
                writers.decided(at)
                self._completed()
            self._drive(driver, life.sweep())
        except (CrashError, Retriable, InDoubt, NeedsStart):
            return False
        return True

    def _drive(self, driver: Coordinator, protocol: Protocol[T], writers: Writers | None = None) -> T:
        try:
            effect = next(protocol)
            while True:
                try:
                    self._point(f"before {type(effect).__name__}")
                    is_clock = isinstance(effect, ReadClock)
                    answer = self._now_ms if is_clock else driver.perform(effect, writers)
                    self._point(f"after {type(effect).__name__}")
                except OnefoldError as error:
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _point(self, name: str) -> None:
        options = [name, DRIVER_DIES]
        options += [WORKERS_RUN_ON] if self.fleet.actions() else []
        options += [LATE_WORK_LANDS] if self.fleet.late else []
        match self.choose(options):
            case option if option == DRIVER_DIES:
                raise CrashError
            case option if option == WORKERS_RUN_ON:
                self.fleet.run_on()
            case option if option == LATE_WORK_LANDS:
                self.fleet.late.pop()()

    def _ahead(self, behind: Range) -> Range | None:
        return self._job.next_range(behind.end)

    def _begin(self, at: ResumePoint) -> None:
        """Workers run, and the first range is next."""

    def _completed(self) -> None:
        """An epoch is complete."""

    def _range(self, at: ResumePoint, writers: Writers) -> Range | None:
        if writers.ahead is not None:
            return writers.ahead
        if at.until is not None:
            return Range(at.at, at.until)
        if (span := self._job.next_range(at.at)) is not None:
            return span
        writers.look()
        self.fleet.aligned = at.in_flight and writers.timer_ms is None
        return Range(at.at, at.at) if writers.timer_ms is not None or at.in_flight else None

    @property
    def _expected(self) -> Counter[str]:
        return self._job.expected

    def _too_much(self, shown: Counter[str]) -> Counter[str]:
        return shown - self._expected

    def _seen(self) -> tuple[str, ...]:
        return ()

    def _shown(self, sink: Any) -> Counter[str]:
        """The words that a sink has, each with how often."""
        shown = Counter[str]()
        for row, times in sink.shown().items():
            for part in row.split():  # a number of a key, and the record that has it
                shown[part] += times
        return shown

    def _wrong(self) -> list[str]:
        """The invariants, at rest."""
        wrong = []
        for name, sink in self.sinks.items():
            shown = self._shown(sink)
            if missing := self._expected - shown:
                wrong.append(f"no-loss: {name} lacks {sorted(missing.elements())}")
            if more := self._too_much(shown):
                wrong.append(f"no-duplicate: {name} has too much {sorted(more.elements())}")
        for name, sink in self.committers.items():
            wrong += [f"nothing-in-doubt: {handle} is left in {name}" for handle in sink.prepared]
        last = self.store.facts(FLOW).last
        if last is None or last.state is not EpochState.COMPLETE:
            wrong.append(f"comes-to-rest: the flow rests at {last}")
        return wrong


def _out_of_patience(pause: Pause, _: float) -> None:
    raise pause.because
