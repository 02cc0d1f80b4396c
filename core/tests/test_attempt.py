"""A task's attempts: what is prepared is the driver's from then on, and what is not is undone."""

from __future__ import annotations

import uuid
from typing import Any, cast

import pyarrow as pa
from harness.errors import raises

from onefold.core.contract import Committable, SinkKind, TaskId
from onefold.core.errors import Retriable
from onefold.core.writing.attempt import Attempt, attempting, write_task

TASK = TaskId("shop", 1, 7, 0, uuid.UUID(int=0))
ROWS = pa.record_batch({"id": [1, 2]})


class Noting:
    """A sink, and its writers, which note what they are asked. With `refuses` none of these is done."""

    def __init__(self, name: str, said: list[str], refuses: str = "") -> None:
        self.name, self.said, self.refuses = name, said, refuses

    def writer(self, task: TaskId) -> Noting:
        assert task.attempt != TASK.attempt
        return self

    def _note(self, what: str) -> None:
        self.said.append(f"{self.name} {what}")
        if what == self.refuses:
            raise Retriable("server-down", self.name)

    def write(self, batch: pa.RecordBatch) -> None:
        assert batch is ROWS
        self._note("writes")

    def prepare(self) -> Committable:
        self._note("prepares")
        return Committable(self.name, SinkKind.TWO_PHASE, self.name, 1, 7, 2)

    def abort(self) -> None:
        self._note("aborts")


def test_what_a_sibling_prepared_is_left_to_the_sweep_where_another_fails() -> None:
    said: list[str] = []
    sinks = [Noting("one", said), Noting("two", said, refuses="prepares"), Noting("three", said)]
    with raises(Retriable, "server-down"):
        write_task(cast(Any, sinks), TASK, [ROWS])
    assert said[3:] == ["one prepares", "two prepares", "two aborts", "three aborts"]


def test_an_attempt_that_is_prepared_is_not_aborted_since_the_driver_may_have_decided_it() -> None:
    said: list[str] = []
    attempt = Attempt(cast(Any, Noting("one", said)))
    with attempting(TASK, [attempt]) as prepared:
        attempt.write(ROWS)
    attempt.abort()  # as a worker does that fails while it reads ahead
    assert (len(prepared), said) == (1, ["one writes", "one prepares"])


def test_without_rows_no_writer_is_asked_for_anything() -> None:
    said: list[str] = []
    assert write_task(cast(Any, [Noting("one", said)]), TASK, []).committables == ()
    assert not said
