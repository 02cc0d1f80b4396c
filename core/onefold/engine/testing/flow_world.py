"""A small flow with the protocol, in memory: two partitions, a keyed processor with timers, and sinks.

The plan, the subtasks, the driver's `Writers`, the protocol and its coordinator are the production code; the store, the
sinks, the state's storage and the channels are models. A run follows a script, which says at which points something
else happens than what comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import EpochState, SinkKind
from onefold.core.errors import InDoubt, OnefoldError, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import EpochRequest, Pause, Protocol
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
from onefold.engine.testing.model_fleet import THEIR_WORK_LANDS_LATER, WORKERS_DIE, FleetSubject, ModelFleet
from onefold.engine.testing.model_state import MAX_PARALLELISM, ModelSnapshots
from onefold.flow.graph import Edge, Graph, Node, Processing, Reading, Shipping, Writing
from onefold.flow.processing.processor import StatefulProcessor
from onefold.flow.time.clocks import SourceEnd
from onefold.flow.writing import in_fixed_order
from onefold.store.job.lifecycle import Lifecycle

__all__ = ["DRIVER_DIES", "LATE_WORK_LANDS", "STRIKES", "WORKERS_RUN_ON", "FlowWorld", "WorldOutcome"]

FLOW = "model"
RECORDS = {"t/0": ("a", "b", "a", "c"), "t/1": ("a", "c", "b", "d")}  # keys, by partition: d comes last
CUTS = ({"t/0": 0, "t/1": 0}, {"t/0": 2, "t/1": 1}, {"t/0": 3, "t/1": 3}, {"t/0": 4, "t/1": 4})
ROWS = pa.schema([("key", pa.string()), ("record", pa.string())])
OUT = pa.schema([("out", pa.string())])
LIVES_MAX = 12
FEW = 3
DRIVER_DIES, WORKERS_RUN_ON, LATE_WORK_LANDS = "the driver dies", "the workers run on", "late work lands"
STRIKES = frozenset({DRIVER_DIES, WORKERS_DIE, THEIR_WORK_LANDS_LATER})
T = TypeVar("T")


class CrashError(BaseException):
    """The driver dies, and its workers with it."""


class _Counting(StatefulProcessor):
    """Numbers the rows of each key as they come, and gives one more row a key in the epoch after its first: of d in
    one after the last that has records."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        (count,) = self._count.get() or (0,)
        if count == 0:
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        for row in rows:
            count += 1
            yield (f"{key[0]}/{count} {row.record}",)
        self._count.update((count,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues, expiredTimerInfo
        yield (f"{key[0]}/timer no",)


EXPECTED = Counter(
    [f"{key}/{n + 1}" for key, of in Counter("".join(map("".join, RECORDS.values()))).items() for n in range(of)]
    + [f"{key}/timer" for key in "abcd"]
    + [f"{partition}:{at}" for partition, of in RECORDS.items() for at in range(len(of))]
    + 4 * ["no"]
)


@dataclass(frozen=True)
class _Source:
    """Each record is a part of its own."""

    name: str = "t"
    on_error: str = "fail"
    bad_records_max: int = 0

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        del guarded
        begin, end = split.range
        none = empty_batch(BAD_COLUMNS)
        for at in range(begin, end):
            row = [RECORDS[split.partition][at]], [f"{split.partition}:{at}"]
            yield Part(pa.record_batch([*row], schema=ROWS), none)


class _Splits:
    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]:
        begin = dict(span.start.items)
        return {0: [Split(p, (begin[p], end)) for p, end in span.end.items if end != begin[p]]}

    def source_end(self, node: int, at: Positions) -> SourceEnd:
        del node
        return SourceEnd(tuple(RECORDS), at == Positions.of(CUTS[-1]))


@dataclass
class WorldOutcome:
    """What became of a run: what is wrong, led by the invariant's name, what could have happened at each point, and
    the points where it was not the first of that, as a script."""

    wrong: list[str]
    options: list[tuple[str, ...]]
    taken: dict[int, int]

    def points(self) -> tuple[str, ...]:
        """What happened in the place of what comes first, for people: of many, what struck."""
        names = {point: self.options[point][option] for point, option in self.taken.items()}
        struck = {point: name for point, name in names.items() if name in STRIKES}
        shown = tuple(f"{point} {name}" for point, name in (names if len(names) <= FEW else struck).items())
        return shown if len(names) <= FEW else (*shown, f"{len(names) - len(struck)} steps in another order")


class FlowWorld:
    """`script` says by the number of a point (the first is 0) which of its options is taken, instead of the first."""

    def __init__(
        self, kinds: Sequence[SinkKind], script: Mapping[int, int], subject: FleetSubject, workers: int = 2
    ) -> None:
        self.script = script
        self.options: list[tuple[str, ...]] = []
        self.taken: dict[int, int] = {}
        self._is_disturbed = True
        self.store = ModelStore()
        named = {f"sink-{number}": kind for number, kind in enumerate(kinds)}
        self.sinks: dict[str, Any] = {name: MODELS[kind](name) for name, kind in named.items()}
        self.state = ModelTwoPhaseSink(STATE)
        nodes = [
            Node(0, Reading(_Source()), (), ROWS, (), "t"),  # type: ignore[arg-type]
            Node(1, Processing(_Counting(), ("key",)), (Edge(0, Shipping.KEYED, ("key",)),), OUT, (), "count"),
            *(Node(n, Writing(sink), (Edge(1),), None) for n, sink in enumerate(self.sinks.values(), start=2)),
        ]
        self.plan = plan(Graph(FLOW, tuple(nodes), MAX_PARALLELISM))
        by_node = dict(enumerate(self.sinks.values(), start=2))
        snapshots = ModelSnapshots(self.state)
        shows_early = [name for name, kind in named.items() if kind is SinkKind.WRITE_THROUGH]
        in_order = in_fixed_order(self.plan.graph, shows_early)
        self.fleet = ModelFleet(self.plan, workers, by_node, snapshots, subject, self.choose, in_order)
        self.lives = 0

    @property
    def committers(self) -> dict[str, Any]:
        return {**self.sinks, STATE: self.state}

    def choose(self, options: Sequence[str]) -> str:
        """What happens at the next point, and what comes first at the end, when nothing is struck any more."""
        if not self._is_disturbed:
            return options[0]
        option = self.pick(options)
        if option:
            self.taken[len(self.options)] = option
        self.options.append(tuple(options))
        return options[option]

    def pick(self, options: Sequence[str]) -> int:
        """By the script, or the first option; the last one where there are fewer."""
        return min(self.script.get(len(self.options), 0), len(options) - 1)

    def run(self) -> WorldOutcome:
        """To the end of the source, and once more, so that nothing is left of what died."""
        try:
            while not self._live():
                self.fleet.end()
                self.lives += 1
                require(self.lives < LIVES_MAX, "a flow comes to its end")
            for land in self.fleet.late:
                land()
            self._is_disturbed = False
            self._live()
        except Exception as error:
            return WorldOutcome([f"comes-to-rest: {type(error).__name__}: {error}"], self.options, self.taken)
        return WorldOutcome(self._wrong(), self.options, self.taken)

    def _live(self) -> bool:
        """One driver, from its start to the source's end: False where it died, or gave up."""
        life = Lifecycle(FLOW, tuple(self.committers))
        kinds = {name: sink.kind for name, sink in self.committers.items()}
        merging = next((name for name, kind in kinds.items() if kind is SinkKind.LAST_RESOURCE), None)
        driver = Coordinator(FLOW, self.store, self.committers, _out_of_patience, merging)
        writes = tuple(name for name, kind in kinds.items() if kind is SinkKind.WRITE_THROUGH)
        try:
            started = self._drive(driver, life.start(Initial(Positions.of(CUTS[0]))))
            self._drive(driver, life.sweep())
            at = resume_point(self.store.facts(FLOW), started, lambda _: ())
            tracker = Tracker(Restart(strategy="fixed_delay", delay_s=1e-9, attempts=LIVES_MAX))
            launch = lambda here, _guarded: self.fleet.launch(here.handles)  # noqa: E731
            ahead = lambda behind: _next_range(behind.end)  # noqa: E731
            writers = Writers(self.plan, self.fleet, _Splits(), tracker, at, launch, ahead, lambda _for_s: None)
            while (span := _range(at, writers)) is not None:
                request = EpochRequest(span, FLOW, at.epoch + 1, "job", tuple(self.committers), writes)
                outcome = self._drive(driver, writers.observing(life.run_epoch(request, LIVES_MAX)), writers)
                at = ResumePoint.after(outcome.record)
                writers.decided(at)
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
                    answer = driver.perform(effect, writers)
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

    def _wrong(self) -> list[str]:
        """The invariants, at rest."""
        wrong = []
        for name, sink in self.sinks.items():
            shown = Counter[str]()
            for row, times in sink.shown().items():
                for part in row.split():  # a number of a key, and the record that has it
                    shown[part] += times
            if missing := EXPECTED - shown:
                wrong.append(f"no-loss: {name} lacks {sorted(missing.elements())}")
            if more := shown - EXPECTED:
                wrong.append(f"no-duplicate: {name} has too much {sorted(more.elements())}")
        for name, sink in self.committers.items():
            wrong += [f"nothing-in-doubt: {handle} is left in {name}" for handle in sink.prepared]
        last = self.store.facts(FLOW).last
        if last is None or last.state is not EpochState.COMPLETE:
            wrong.append(f"comes-to-rest: the flow rests at {last}")
        return wrong


def _range(at: ResumePoint, writers: Writers) -> Range | None:
    if writers.ahead is not None:
        return writers.ahead
    if at.until is not None:
        return Range(at.at, at.until)
    if (span := _next_range(at.at)) is not None:
        return span
    writers.look()
    return Range(at.at, at.at) if writers.timer_ms is not None else None


def _next_range(at: Positions) -> Range | None:
    ends = [Positions.of(cut) for cut in CUTS]
    number = ends.index(at)
    return Range(at, ends[number + 1]) if number + 1 < len(ends) else None


def _out_of_patience(pause: Pause, _: float) -> None:
    raise pause.because
