"""Which epoch each batch of a query is, where no schedule of the simulator tells: without Spark, over models."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import (
    CheckpointMismatch,
    Committable,
    ConfigError,
    DataLoss,
    EpochRecord,
    EpochState,
    Fenced,
    InDoubt,
    Positions,
    Range,
    TaskId,
)
from onefold.core.positions import WATERMARK
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import Decide, Pause
from onefold.core.protocol.epoch import Initial
from onefold.core.testing.simulator.model_checkpoint import ROOT, Checkpoint
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.core.testing.simulator.models import ModelSink, ModelTwoPhaseSink
from onefold.store.job import offset_log
from onefold.store.job.checkpoint_only import within
from onefold.store.job.offset_json import StreamOffset
from onefold.store.job.query import QueryJob, QueryLifecycle, RunningQuery

JOB = QueryJob("job", ("sink",))
SHOWS_AT_ONCE = QueryJob("job", ("sink",), write_through=("sink",))
FIRST, SECOND = (RunningQuery("query", run, ROOT, stateful=False) for run in ("first", "second"))

WINDOWS = RunningQuery("query", "first", ROOT, stateful=True, clocks=(WATERMARK,))


def at(offset: int) -> Positions:
    return Positions.of({"t/0": offset})


class Process:
    """A driver's process: its life, and what it talks to, which it shares with others."""

    def __init__(self, of: Process | None = None, sink: ModelSink | None = None, job: QueryJob = JOB) -> None:
        self.store, self.sink, self.checkpoint = (
            (of.store, of.sink, of.checkpoint)
            if of
            else (ModelStore(), sink or ModelTwoPhaseSink("sink"), Checkpoint())
        )
        self.job = of.job if of else job
        self.driver = Coordinator("p", self.store, {"sink": self.sink}, _give_up, files=self.checkpoint)
        self.lifecycle = QueryLifecycle("p", ("sink",))

    def start(self, from_ledger: bool = False) -> Process:
        self.driver.run(self.lifecycle.start(Initial(at(0), from_ledger)))
        return self

    def plans(self, batch: int, end: int, begun: int = 0) -> None:
        self.checkpoint.plan(batch, at(end), at(begun))

    def goes_by(self, batch: int, watermark_ms: int) -> None:
        """Spark has written down the watermark beside the batch's end, and that the batch before it is done."""
        path = f"{ROOT}/offsets/{batch}"
        version, _, ends = self.checkpoint.files[path].split("\n")
        self.checkpoint.files[path] = "\n".join([version, json.dumps({WATERMARK: watermark_ms}), ends])
        self.checkpoint.commit(batch - 1)

    def range_of(self, batch: int) -> Range:
        return self.driver.run(self.lifecycle.request(batch, self.job)).range

    def runs(self, batch: int, query: RunningQuery = FIRST) -> EpochRecord:
        self.driver.run(self.lifecycle.bind(query))
        request = self.driver.run(self.lifecycle.request(batch, self.job))
        return self.driver.run(self.lifecycle.run(request), self._write).record

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


def _give_up(pause: Pause, _: float) -> None:
    raise pause.because


def test_a_batch_whose_call_never_returned_is_the_same_range_when_it_is_asked_again() -> None:
    process = Process().start()
    for batch, end in ((0, 10), (1, 20)):
        process.plans(batch, end)
        process.runs(batch)
    assert process.range_of(1) == Range(at(10), at(20))
    assert process.runs(1).epoch == 2, "a replay"


def test_a_second_call_for_a_batch_marks_its_epoch_and_nothing_completes_that() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.driver.run(process.lifecycle.bind(FIRST))
    request = process.driver.run(process.lifecycle.request(0, process.job))
    process.lifecycle.returned(0, process.driver.run(process.lifecycle.run(request), process._write))
    with raises(ConfigError, "batch-written-twice"):
        process.range_of(0)
    process.driver.run(process.lifecycle.sweep())
    assert [record.state for record in process.store.history()] == [EpochState.DAMAGED]


def test_a_first_batch_starts_where_its_query_began_not_where_the_ledger_stands_by_now() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.runs(0)
    again = Process(process).start(from_ledger=True)
    again.driver.run(again.lifecycle.bind(FIRST))
    assert again.lifecycle.started is not None and again.lifecycle.started.start == at(10)
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
    again.driver.run(again.lifecycle.bind(SECOND))
    assert again.range_of(5) == Range(at(10), at(20))


def test_a_process_in_doubt_does_not_take_over_from_its_successor() -> None:
    process = Process().start()
    process.plans(0, 10)
    with process.in_doubt(), pytest.raises(InDoubt):
        process.runs(0)
    Process(process).start()
    with raises(Fenced, "taken-over"):
        process.runs(0)


def test_a_jobs_own_query_is_swept_for_only_once_its_checkpoint_agrees_with_the_store() -> None:
    """A newer copy of the store may have decided what an older one does not know."""
    process = Process().start()
    process.plans(0, 10)
    process.runs(0)
    process.checkpoint.commit(0)
    older = Process()
    older.checkpoint = older.driver.files = process.checkpoint
    prepared = older.prepares(epoch=1, generation=0)
    with raises(DataLoss, "checkpoint-ahead"):
        older.driver.run(older.lifecycle.bind(SECOND))
    assert [*older.sink.prepared] == [prepared.handle] and not older.lifecycle.is_swept
    older.checkpoint.clear()
    older.driver.run(older.lifecycle.bind(SECOND))
    assert not older.sink.prepared and older.lifecycle.is_swept


def test_a_batch_that_only_moves_the_watermark_is_an_epoch_of_its_own_and_a_replay_is_known() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.runs(0, WINDOWS)
    process.plans(1, 10)
    process.goes_by(1, 5000)
    written = process.runs(1, WINDOWS)
    assert (written.epoch, written.range.is_empty) == (2, False)
    assert written.range.start.of_records() == written.range.end.of_records() == at(10)
    again = Process(process).start()
    assert again.runs(1, WINDOWS).epoch == written.epoch
    again.plans(2, 20)
    again.goes_by(2, 5000)
    assert again.runs(2, WINDOWS).epoch == 3


def test_a_checkpoint_from_before_the_watermark_moved_does_not_make_its_windows_again() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.runs(0, WINDOWS)
    process.plans(1, 10)
    process.goes_by(1, 5000)
    process.runs(1, WINDOWS)
    process.checkpoint.forget(1)
    restored = Process(process).start()
    restored.plans(1, 20)
    restored.goes_by(1, 5000)
    with raises(CheckpointMismatch, "positions-not-comparable"):
        restored.runs(1, WINDOWS)


def test_windows_do_not_go_on_from_the_ledger_without_their_state() -> None:
    process = Process().start()
    process.plans(0, 10)
    process.runs(0, WINDOWS)
    process.plans(1, 10)
    process.goes_by(1, 5000)
    process.runs(1, WINDOWS)
    process.checkpoint.clear()
    resumed = Process(process).start(from_ledger=True)
    resumed.plans(0, 20, begun=10)
    with raises(CheckpointMismatch, "state-missing"):
        resumed.runs(0, WINDOWS)


def test_a_flows_stream_says_itself_where_it_began_also_what_is_no_offset() -> None:
    began = Positions.of({"t/0": 5}, {"t/id": "x"})
    end = Positions.of({"t/0": 7, "#in ü/": "3:abc"}, {"t/id": "x", "t/epochs": "0:1"})
    offset = json.dumps(StreamOffset(end, began).value())
    files = {"root/offsets/0": f"v1\n{{}}\n{offset}"}

    def answer(protocol: Any) -> Any:
        effect = next(protocol)
        try:
            while True:
                effect = protocol.send(files.get(effect.path))
        except StopIteration as stop:
            return stop.value

    assert answer(offset_log.end_of_running("root", 0)) == end
    assert answer(offset_log.first_start("root", 0, end)) == began
    assert within("query", end) is end  # such positions count for every query
    assert StreamOffset.of(json.loads(offset)) == StreamOffset(end, began)
