"""A driver's process in a world, and the steps that it takes: the protocol's effects, and those of Spark's own."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from onefold.core.contract import Committable, EpochRecord, Generation
from onefold.core.errors import OnefoldError
from onefold.core.positions import Positions, Range
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import Effect, RunWriters
from onefold.core.testing.simulator.host import Host


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """Spark logs how far its next batch goes, of a stream that began at `start`."""

    batch: int
    end: Positions
    start: Positions


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Spark logs that the batch is done."""

    batch: int


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """-> Committable | None: one attempt of one task writes its rows and prepares. `is_first` of its job."""

    sink: str
    record: EpochRecord
    rows: tuple[str, ...]
    is_first: bool


STATE = "#state of epoch "  # how a row begins that stands for state

Step = Effect | PlanBatch | CommitBatch | RunAttempt
Steps = Generator[Step, Any, None]
T = TypeVar("T")


class Process:
    """A driver's process: what it runs, and the step that it is about to take. None once it has ended."""

    def __init__(self, steps: Steps, driver: Coordinator, host: Host) -> None:
        self.steps = steps
        self.driver = driver
        self.host = host
        self.generation: Generation | None = None
        self.next: Step | None = next(steps, None)

    def answer(self, value: Any) -> None:
        self._go_on(self.steps.send, value)

    def fail(self, error: OnefoldError) -> None:
        self._go_on(self.steps.throw, error)

    def _go_on(self, resume: Callable[[Any], Step], told: Any) -> None:
        self.next = None
        try:
            self.next = resume(told)
        except StopIteration:
            return


def with_tasks(
    protocol: Generator[Effect, Any, T],
    job: Callable[[EpochRecord], Generator[Step, Any, tuple[Committable, ...]]],
    beside: Callable[[], Iterable[Step]] = tuple,
) -> Generator[Step, Any, T]:
    """The protocol, with a job in place of `RunWriters`. `beside` it another thread of the driver takes its steps."""
    try:
        effect = next(protocol)
        while True:
            try:
                if isinstance(effect, RunWriters):
                    yield from beside()
                    answer: Any = yield from job(effect.record)
                else:
                    answer = yield effect
            except OnefoldError as error:
                effect = protocol.throw(error)
            else:
                effect = protocol.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def job_over(data: Range, record: EpochRecord) -> Generator[Step, Any, tuple[Committable, ...]]:
    """Spark's, over the data that it holds: two tasks for each sink, one attempt each."""
    accepted: list[Committable | None] = []
    for sink in record.sinks:
        for rows in records_of(data).values():
            accepted.append((yield RunAttempt(sink, record, tuple(rows), not accepted)))
    return tuple(committable for committable in accepted if committable is not None)


def state_of(record: EpochRecord) -> str:
    """The row that stands for the state which came with a move."""
    return f"{STATE}{record.epoch}"


def importing(sinks: Container[str], record: EpochRecord) -> Generator[Step, Any, tuple[Committable, ...]]:
    """A restore's: the epoch's state, for each of these sinks."""
    prepared: list[Committable | None] = []
    for sink in record.sinks:
        if sink in sinks:
            prepared.append((yield RunAttempt(sink, record, (state_of(record),), not prepared)))
    return tuple(committable for committable in prepared if committable is not None)


@cache
def records_of(span: Range) -> Mapping[str, Sequence[str]]:
    """The source records of each partition in a range."""
    first = dict(span.start.items)
    return {
        partition: tuple(f"{partition}@{offset}" for offset in range(int(first.get(partition, 0)), int(end)))
        for partition, end in span.end.items
    }
