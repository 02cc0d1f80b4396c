"""The model flow under acknowledgement: no record is ever lost, and some come twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar
from uuid import UUID

from onefold.core.contract import SinkKind, TaskId
from onefold.core.positions import Range
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.driver.restarts import WorkerFailed
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers
from onefold.engine.mechanisms.ack.subtask import AckReader, AckSubtask, begun
from onefold.engine.mechanisms.ack.tracking import Order, Told, Tracking, _Root
from onefold.engine.testing.flow_jobs import DEFAULT_JOB
from onefold.engine.testing.flow_world import FlowWorld, ModelSource, Pick
from onefold.engine.testing.model_fleet import WORKERS_DIE, FleetSubject, ModelFleet
from onefold.engine.workers.messages import Ready
from onefold.engine.workers.worker import Reader
from onefold.flow.processing.mechanisms import Mechanism

ACK = "acknowledgement"  # in the place of a job's name
DOUBLED, ROOTS_FAIL = "rows come twice", "roots fail"
_EPOCH = "an epoch"


class _AckFleet(ModelFleet):
    """Its workers tell the driver at once."""

    READER = AckReader
    tracking: Tracking | None = None
    is_dead = False
    chance = Random(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._told: dict[int, Told] = {}

    def read(self, orders: Iterable[Order]) -> None:
        for root, _, split in orders:
            for reader in self._workers[int(split.partition[-1]) % self.workers].readers.values():
                reader.begin(root, (split,))

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
        task = TaskId("model", 0, 0, 0, UUID(int=0))
        self._told[index] = begun(worker.subtasks, worker.readers, task, self.chance)
        return worker


class AckWorld(FlowWorld):
    MECHANISM: ClassVar[Mechanism] = "ack"
    FLEET = _AckFleet
    fleet: _AckFleet

    def __init__(self, kinds: Sequence[SinkKind], pick: Pick, subject: FleetSubject, job: str = ACK) -> None:
        super().__init__(kinds, pick, replace(subject, subtask=AckSubtask), DEFAULT_JOB)
        self._job_name = job

    @property
    def committers(self) -> dict[str, Any]:
        return self.sinks

    def _ahead(self, behind: Range) -> None:
        del behind

    def _begin(self, at: ResumePoint) -> None:
        source, tracking = ModelSource(self._job), self._subject.tracking
        self.fleet.tracking = tracking(source.end, lambda span: {0: source.splits(span)}, at.at, Random(0))

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
            actions, has_work = fleet.actions(), not fleet.is_up or tracking.has_work(at.at)
            if not actions and not has_work:
                return None
            disturbing = [WORKERS_DIE, *([] if tracking.is_idle else [ROOTS_FAIL])] if fleet.is_up else []
            match self.choose([*actions, *([_EPOCH] if has_work or not actions else []), *disturbing]):
                case option if option == _EPOCH:
                    return Range(at.at, tracking.done_at)
                case option if option == WORKERS_DIE:
                    fleet.is_dead = True
                case option if option == ROOTS_FAIL:
                    for _ in range(tracking.turns):
                        fleet.read(tracking.rotate())
                case option:
                    actions[option]()

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
