"""Attempts to write an epoch: what is undone where one fails, and what is not any more."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
from harness.errors import raises

from onefold.core import TaskId, Terminal
from onefold.core.writing.attempt import Attempt, write_task

TASK = TaskId("orders", 1, 1, 0, uuid.UUID(int=0))
BATCH = pa.record_batch({"id": [1]})


class Writing:
    """A sink, and the writer of its only attempt. It notes what is asked of it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[str] = []
        self.fails = fails

    def writer(self, _task: TaskId) -> Any:
        return self

    def write(self, _batch: pa.RecordBatch) -> None:
        self.asked.append("write")

    def prepare(self) -> None:
        self.asked.append("prepare")
        if self.fails:
            raise Terminal("test", "no room")

    def abort(self) -> None:
        self.asked.append("abort")


def test_what_an_attempt_has_prepared_it_never_undoes_since_the_epoch_may_be_decided_by_then() -> None:
    sink: Any = Writing()
    attempt = Attempt(sink)
    attempt.begin(TASK)
    attempt.write(BATCH)
    attempt.prepare()
    attempt.abort()  # as a worker does whose driver died after its decision
    assert sink.asked == ["write", "prepare"]


def test_where_one_of_several_cannot_prepare_only_what_is_not_prepared_is_undone() -> None:
    first, second, third = sinks = [Writing(), Writing(fails=True), Writing()]
    with raises(Terminal, "test"):
        write_task(sinks, TASK, [BATCH])  # type: ignore[arg-type]
    assert first.asked == ["write", "prepare"]
    assert second.asked == ["write", "prepare", "abort"]
    assert third.asked == ["write", "abort"]
