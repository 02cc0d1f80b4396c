"""Which epoch each batch of a query is, where no schedule of the simulator tells: without Spark, over models."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from onefold.core import Committable, ConfigError, DataLoss, EpochRecord, Fenced, InDoubt, Positions, Range, TaskId
from onefold.core.job.query import Job, QueryLife, RunningQuery
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import Decide, Pause
from onefold.core.protocol.epoch import Initial
from onefold.core.testing.simulator.checkpoint import ROOT, Checkpoint
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.core.testing.simulator.models import ModelSink, ModelTwoPhaseSink, ModelWriteThroughSink

JOB = Job("job", ("sink",))
SHOWS_AT_ONCE = Job("job", ("sink",), write_through=("sink",))
FIRST, SECOND = (RunningQuery("query", run, ROOT, stateful=False) for run in ("first", "second"))


def at(offset: int) -> Positions:
    return Positions.of({"t/0": offset})


class Process:
    """A driver's process: its life, and what it talks to, which it shares with others."""

    def __init__(self, of: Process | None = None, sink: ModelSink | None = None, job: Job = JOB) -> None:
        self.store, self.sink, self.checkpoint = (
            (of.store, of.sink, of.checkpoint)
            if of
            else (ModelStore(), sink or ModelTwoPhaseSink("sink"), Checkpoint())
        )
        self.job = of.job if of else job
        self.driver = Coordinator("p", self.store, {"sink": self.sink}, _give_up, files=self.checkpoint)
        self.life = QueryLife("p", ("sink",))

    def start(self, from_ledger: bool = False) -> Process:
        self.driver.run(self.life.start(Initial(at(0), from_ledger)))
        return self

    def plans(self, batch: int, end: int, begun: int = 0) -> None:
        self.checkpoint.plan(batch, at(end), at(begun))

    def range_of(self, batch: int) -> Range:
        return self.driver.run(self.life.request(batch, self.job)).range

    def runs(self, batch: int, query: RunningQuery = FIRST) -> EpochRecord:
        self.driver.run(self.life.bind(query))
        request = self.driver.run(self.life.request(batch, self.job))
        return self.driver.run(self.life.run(request), self._write).record

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        return (self.prepares(record.epoch, record.generation, record.timestamp_ms),)

    def prepares(self, epoch: int, generation: int = 1, timestamp_ms: int = 1) -> Committable:
        writer = self.sink.writer(TaskId("p", generation, epoch, timestamp_ms, uuid.uuid4()))
        writer.write(pa.record_batch({"id": [f"row-{epoch}"]}))
        prepared = writer.prepare()
        assert prepared is not None
        return prepared

    @contextmanager
    def in_doubt(self) -> Iterator[None]:
        """No decision is answered, nor made."""
        perform: Any = self.driver.perform

        def perform_all_but_decisions(effect: Any, run_writers: Any = None) -> Any:
            if isinstance(effect, Decide):
                raise InDoubt("commit-unanswered", "no answer")
            return perform(effect, run_writers)

        self.driver.perform = perform_all_but_decisions  # type: ignore[method-assign]
        yield
        self.driver.perform = perform  # type: ignore[method-assign]


def _give_up(pause: Pause) -> None:
    raise pause.because


def test_a_batch_whose_call_never_returned_is_the_same_range_when_it_is_asked_again() -> None:
    process = Process().start()
    for batch, end in ((0, 10), (1, 20)):
        process.plans(batch, end)
        process.runs(batch)
    assert process.range_of(1) == Range(at(10), at(20))
    assert process.runs(1).epoch == 2, "a replay"


def test_a_first_batch_starts_where_its_query_began_not_where_the_ledger_stands_by_now() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.runs(0)
    again = Process(process).start(from_ledger=True)
    again.driver.run(again.life.bind(FIRST))
    assert again.life.started is not None and again.life.started.start == at(10)
    assert again.range_of(0) == Range(at(0), at(10))


def test_each_run_of_a_query_works_under_a_generation_of_its_own() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.plans(1, 20)
    assert [process.runs(0, FIRST).generation, process.runs(1, SECOND).generation] == [1, 2]


def test_batch_numbers_that_skip_go_on_where_the_last_planned_one_ended() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.runs(0)
    process.plans(5, 20)
    again = Process(process).start()
    again.driver.run(again.life.bind(SECOND))
    assert again.range_of(5) == Range(at(10), at(20))


def test_a_process_in_doubt_does_not_take_over_from_its_successor() -> None:
    process = Process().start()
    process.plans(0, 10)
    with process.in_doubt(), pytest.raises(InDoubt):
        process.runs(0)
    Process(process).start()
    with pytest.raises(Fenced, match=r"taken over \(now: 2\)"):
        process.runs(0)


def test_a_source_that_plans_no_ends_may_go_on_once_the_begun_epoch_has_run_again() -> None:
    process = Process(sink=ModelWriteThroughSink("sink"), job=SHOWS_AT_ONCE).start()
    process.plans(0, 10)
    with process.in_doubt(), pytest.raises(InDoubt):
        process.runs(0)
    again = Process(process).start()
    process.checkpoint.clear()
    with pytest.raises(ConfigError, match=r"\[reader-cannot-replay\]"):
        again.driver.run(again.life.check_checkpoint(ROOT, plans_ends=False))
    again.plans(0, 10)
    again.driver.run(again.life.check_checkpoint(ROOT, plans_ends=False))
    again.runs(0)
    again.plans(1, 20)
    again.driver.run(again.life.check_checkpoint(ROOT, plans_ends=False))


def test_a_jobs_own_query_is_swept_for_only_once_its_checkpoint_agrees_with_the_store() -> None:
    """A newer copy of the store may have decided what an older one does not know."""
    process = Process().start()
    process.plans(0, 10)
    process.runs(0)
    process.checkpoint.commit(0)
    older = Process()
    older.checkpoint = older.driver.files = process.checkpoint
    prepared = older.prepares(epoch=1)
    with pytest.raises(DataLoss, match=r"\[checkpoint-ahead\]"):
        older.driver.run(older.life.bind(SECOND))
    assert [*older.sink.prepared] == [prepared.handle] and not older.life.is_swept
    older.checkpoint.clear()
    older.driver.run(older.life.bind(SECOND))
    assert not older.sink.prepared and older.life.is_swept
