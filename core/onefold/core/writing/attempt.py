"""Attempts of a task to write an epoch's rows to the sinks: all prepare, or what is not prepared is undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, Sink, SinkWriter, TaskId
from onefold.core.failpoints import failpoint
from onefold.core.writing.dead_letters import Found, Policy, letters


@dataclass(frozen=True, slots=True)
class Written:
    """What one task prepared, and how many bad records it found; or what all did, and what became of those `found`, how
    many rows came too `late` for an operator, and what else of the epoch a line of the log tells."""

    committables: tuple[Committable, ...]
    bad: int = 0
    found: tuple[Found, ...] = ()
    late: int = 0
    told: tuple[str, ...] = ()


class Attempt:
    """A task's attempt to write an epoch's rows to a sink that the driver has opened. Without rows it has no writer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._task: TaskId | None = None
        self._writer: SinkWriter | None = None

    def begin(self, task: TaskId) -> None:
        """Before the epoch's first batch."""
        self._task, self._writer = task.another_attempt(), None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._sink.writer(present(self._task, "an epoch has begun"))
        self._writer.write(batch)

    def prepare(self) -> list[Committable]:
        """After the epoch's last batch. What another process needs to finish it; nothing without rows."""
        committable = None if self._writer is None else self._writer.prepare()
        self._writer = None  # prepared: by now the driver may have decided on it, and nobody may undo it
        return [] if committable is None else [committable]

    def abort(self) -> None:
        """Undo what is not prepared."""
        if self._writer is not None:
            with suppress(Exception):  # the first error is the one to report; what stays behind, the sweep removes
                self._writer.abort()


class _Attempting(Protocol):
    """An attempt, or a chain of operators that has some."""

    def begin(self, task: TaskId) -> None: ...

    def prepare(self) -> list[Committable]: ...

    def abort(self) -> None: ...


@contextmanager
def attempting(task: TaskId, attempts: Sequence[_Attempting]) -> Iterator[list[Committable]]:
    """Has a task's attempts begin; in the block they write; then all prepare, which fills the list. An error aborts
    what is not prepared."""
    prepared: list[Committable] = []
    try:
        for each in attempts:
            each.begin(task)
        yield prepared
        failpoint("writers:written")
        for each in attempts:
            prepared += each.prepare()
    except BaseException:
        for each in attempts:
            each.abort()
        raise
    failpoint("writers:prepared")


def write_task(sinks: Sequence[Sink], task: TaskId, batches: Iterable[pa.RecordBatch]) -> Written:
    """Runs a task: every batch goes to every sink."""
    attempts = [Attempt(sink) for sink in sinks]
    with attempting(task, attempts) as prepared:
        for batch in batches:
            for attempt in attempts:
                attempt.write(batch)
    return Written(tuple(prepared))


def write_letters(policy: Policy, task: TaskId, batches: Iterable[pa.RecordBatch]) -> Written:
    """Runs a task of bad records, `BAD_COLUMNS`, of which the policy's sink gets dead letters. Raises BadRecord where
    they are too many."""
    attempts, count = [] if policy.sink is None else [Attempt(policy.sink)], 0
    with attempting(task, attempts) as prepared:
        for bad in batches:
            count += bad.num_rows
            policy.refuse(task, count, bad)
            for attempt in attempts:
                attempt.write(letters(bad, task))
    return Written(tuple(prepared), count)
