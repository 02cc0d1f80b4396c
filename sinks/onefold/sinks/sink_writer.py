"""The life of a writer: rows come, then it prepares or aborts, once; and any failure ends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import Committable, SinkKind, TaskId
from onefold.core.errors import BadRecord, ConfigError, OnefoldError, SchemaMismatch
from onefold.core.failpoints import failpoint

T = TypeVar("T")


class AttemptWriter(ABC):
    """One attempt of one task. It connects when the first row arrives; an empty task never does.

    `_rows` came so far, and `_bytes` are what a subclass made of them; `_payload` is theirs, where they go with what
    is prepared. Rows of another schema than `schema`, where it
    is given, are a SchemaMismatch.
    """

    def __init__(self, sink: str, kind: SinkKind, task: TaskId, schema: pa.Schema | None = None) -> None:
        self._sink, self._kind, self._task, self._schema = sink, kind, task, schema
        self._rows = self._bytes = 0
        self._payload = b""
        self._is_over = False

    def write(self, batch: pa.RecordBatch) -> None:
        require(not self._is_over, "a writer takes no rows after prepare or abort")
        if batch.num_rows == 0:
            return
        with self._ending_by_failure("writing rows"):
            self._check(batch.schema)
            self._add(batch)
        self._rows += batch.num_rows

    def prepare(self) -> Committable | None:
        require(not self._is_over, "a writer prepares once")
        if not self._rows:
            self._is_over = True
            return None
        failpoint("before:prepare")
        with self._ending_by_failure("preparing"):
            handle = self._prepare()
        failpoint("after:prepare")
        self._is_over = True
        task = self._task
        named = self._sink, self._kind, handle, task.generation, task.epoch, self._rows, self._bytes
        return Committable(*named, self._payload)

    def abort(self) -> None:
        """Undo an attempt that did not prepare; after prepare, and a second time, it does nothing."""
        self._is_over = True
        self._undo()

    @abstractmethod
    def _add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of at least one row. `_rows` came before it."""

    @abstractmethod
    def _prepare(self) -> str:
        """Make durable what came, and let go of the connection. Returns the handle by which another process finishes
        it."""

    @abstractmethod
    def _undo(self) -> None:
        """Undo what is not prepared, whatever state it is in; once more, nothing."""

    def _translated(self, error: Exception, doing: str) -> Exception:
        """The error as onefold's. Nothing that a task does is in doubt: what it may have left is in no manifest."""
        del doing
        return error.reworded(f"{self._where}: {error.message}") if isinstance(error, BadRecord) else error

    @property
    def _where(self) -> str:
        return f"sink {self._sink!r} of pipeline {self._task.pipeline!r}, epoch {self._task.epoch}"

    def _check(self, came: pa.Schema) -> None:
        opened = self._schema
        if opened is not None and (came.names != opened.names or came.types != opened.types):
            raise SchemaMismatch(
                "rows-of-another-schema", f"{self._where}: rows of {came} came, and the sink was opened for {opened}"
            )

    @contextmanager
    def _ending_by_failure(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            translated = self._translated(error, doing)
            with suppress(OnefoldError):  # the first error is the one to report, and a sweep finds what is left
                self.abort()
            if translated is error:
                raise
            raise translated from error


def opened(plan: T | None, sink: str) -> T:
    """What `open` has made of a sink, for its writers. Raises ConfigError where it was not opened."""
    if plan is None:
        raise ConfigError(
            "sink-not-opened", f"sink {sink!r} was not opened: the driver calls open() before any writer runs"
        )
    return plan


def check_names(names: Sequence[str], opened: Sequence[str]) -> None:
    """Raise SchemaMismatch unless the rows have the columns that the sink was opened with, in whatever order."""
    if sorted(names) != sorted(opened):
        raise SchemaMismatch(
            "rows-of-another-schema",
            f"the rows have columns {', '.join(names)}, and the sink was opened with {', '.join(opened)}: open it with"
            " the schema that the writers deliver",
        )
