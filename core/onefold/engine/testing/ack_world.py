"""The model flow under acknowledgement: no record is ever lost, and some come twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar
from uuid import UUID

from onefold.core.checks import present
from onefold.core.contract import SinkKind, TaskId
from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.engine.dataflow.chains import Chain
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.driver.restarts import WorkerFailed
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers
from onefold.engine.mechanisms.ack.subtask import AckReader, AckSubtask
from onefold.engine.mechanisms.ack.tracking import TURNS, Order, Told, Tracking, _Root
from onefold.engine.testing.flow_jobs import DEFAULT_JOB
from onefold.engine.testing.flow_world import FlowWorld
from onefold.engine.testing.model_fleet import WORKERS_DIE, FleetSubject, ModelFleet
from onefold.engine.workers.messages import Done, Ready
from onefold.engine.workers.worker import Reader
from onefold.flow.processing.mechanisms import Mechanism
from onefold.flow.time.clocks import SourceEnd

__all__ = ["ACK", "DOUBLED", "MUTANTS_OF_ACK", "ROOTS_FAIL", "AckWorld"]

ACK = "acknowledgement"  # in the place of a job's name
DOUBLED, ROOTS_FAIL = "rows come twice", "roots fail"
_EPOCH = "an epoch"


class _AckFleet(ModelFleet):
    """Its workers tell the driver at once."""

    tracking: Tracking | None = None
    is_dead = False
    chance = Random(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._told: dict[int, Told] = {}

    @property
    def waiting(self) -> int:
        return sum(told.waiting for told in self._told.values())

    def begin(
        self,
        splits: Mapping[int, Sequence[Split]],
        ends: Mapping[int, SourceEnd],
        task: TaskId | None,
    ) -> int:
        del splits, ends
        assert self.tracking is not None
        self.tracking.flush(self._runs + 1, self.workers)
        return super().begin({}, {}, task)

    def read(self, orders: Iterable[Order]) -> None:
        for root, _, split in orders:
            for reader in self._workers[int(split.partition[-1]) % self.workers].readers.values():
                reader.begin(root, (split,))

    def collect(self, run: int) -> list[Done]:
        done = super().collect(run)
        for index, told in self._told.items():
            told.xors[-run] ^= 1 << index
        self._hear()
        return done

    def look(self) -> Ready:
        if self.is_dead:
            raise WorkerFailed("worker-lost", "the workers have died")
        return super().look()

    def end(self) -> None:
        super().end()
        self._told, self.is_dead = {}, False
        if self.tracking is not None:
            self.tracking.restart()

    def _step(self, index: int, subtask: Subtask) -> None:
        super()._step(index, subtask)
        self._hear()

    def _read(self, index: int, reader: Reader, subtask: Subtask) -> None:
        super()._read(index, reader, subtask)
        self._hear()

    def _hear(self) -> None:
        for told in self._told.values():
            if self.tracking is not None:
                self.tracking.hear(told)
                told.clear()

    def _worker(self, index: int, handles: Sequence[str]) -> Any:
        worker = super()._worker(index, handles)
        for number in worker.readers:
            subtask: Any = worker.subtasks[number]
            worker.readers[number] = reader = AckReader(present(subtask.chain.source, "it reads"))
            reader.index, reader.subtask = index, subtask
        return worker

    def _restore_flights(self, subtask: Subtask, index: int, handles: Sequence[str]) -> None:
        """Nothing is kept."""

    def _subtask(self, chain: Chain, index: int, handles: Sequence[str]) -> Any:
        subtask = super()._subtask(chain, index, handles)
        assert isinstance(subtask, AckSubtask)
        task = TaskId("model", 0, 0, 0, UUID(int=0))
        subtask.begin(self._told.setdefault(index, Told()), partial(self.chance.getrandbits, 64), task)
        return subtask


class AckWorld(FlowWorld):
    MECHANISM: ClassVar[Mechanism] = "ack"
    FLEET = _AckFleet
    fleet: _AckFleet

    def __init__(
        self, kinds: Sequence[SinkKind], script: Mapping[int, int], subject: FleetSubject, job: str = ACK
    ) -> None:
        super().__init__(kinds, script, replace(subject, subtask=AckSubtask), DEFAULT_JOB)
        self._job_name = job

    @property
    def committers(self) -> dict[str, Any]:
        return self.sinks

    # What is asked of planners

    def end(self, start: Positions) -> Positions:
        found = self._job.next_range(start)
        return start if found is None else found.end

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]:
        begin = dict(span.start.items)
        return {0: [Split(p, (begin[p], end)) for p, end in span.end.items if end != begin[p]]}

    # The driver

    def _ahead(self, behind: Range) -> None:
        del behind

    def _begin(self, at: ResumePoint) -> None:
        self.fleet.tracking = self._subject.tracking(self.end, self.splits, at.at, Random(0))

    def _completed(self) -> None:
        assert self.fleet.tracking is not None
        self.fleet.tracking.committed()

    def _range(self, at: ResumePoint, writers: Writers) -> Range | None:
        """The workers go on until an epoch is due, and struck."""
        fleet, tracking = self.fleet, self.fleet.tracking
        assert tracking is not None
        while True:
            writers.look()
            while fleet.is_up and (orders := tracking.next()):
                fleet.read(orders)
            actions, has_work = fleet.actions(), not fleet.is_up or tracking.has_work(at.at, fleet.waiting)
            if not actions and not has_work:
                return None
            disturbing = [WORKERS_DIE, *([] if tracking.is_idle else [ROOTS_FAIL])] if fleet.is_up else []
            match self.choose([*actions, *([_EPOCH] if has_work or not actions else []), *disturbing]):
                case option if option == _EPOCH:
                    return Range(at.at, tracking.done_at)
                case option if option == WORKERS_DIE:
                    fleet.is_dead = True
                case option if option == ROOTS_FAIL:
                    for _ in range(TURNS):
                        fleet.read(tracking.rotate())
                case option:
                    actions[option]()

    # What must be there

    @property
    def _expected(self) -> Counter[str]:
        """The records, whatever their numbers: the state is lost."""
        return Counter({word: times for word, times in self._job.expected.items() if ":" in word})

    def _too_much(self, shown: Counter[str]) -> Counter[str]:
        del shown
        return Counter()

    def _seen(self) -> tuple[str, ...]:
        shown = [self._shown(sink) for sink in self.sinks.values()]
        return (DOUBLED,) if any(each[word] > 1 for each in shown for word in self._expected) else ()


class _NotZero(Tracking):
    """Takes a root for done as soon as anybody has acknowledged it."""

    def _is_done(self, of: _Root) -> bool:
        del of
        return True


class _BeforeCommit(Tracking):
    """Acknowledges what ends in a sink when that has prepared."""

    def hear(self, told: Told) -> None:
        for root, xor in told.ended.items():
            told.xors[root] ^= xor
        told.ended = Counter()
        super().hear(told)


MUTANTS_OF_ACK = {
    "a root whose XOR is not zero is done": FleetSubject(tracking=_NotZero),
    "what a sink has prepared is acknowledged before the commit": FleetSubject(tracking=_BeforeCommit),
}
