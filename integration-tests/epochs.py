"""Whole epochs through a sink's contract and a real checkpoint store, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from onefold.core import Committable, EpochRecord, LastResource, Positions, Range, Sink, SinkKind, TaskId
from onefold.core.driver import Driver
from onefold.core.effects import EpochRequest, Pause
from onefold.core.protocol import Initial, Outcome, epoch, start
from onefold.core.store import CheckpointStore

__all__ = ["Epochs"]

Batches = Sequence[pa.RecordBatch]


class Epochs:
    """One life of a pipeline's driver: recovery at first, then an epoch for each `run`."""

    def __init__(self, sink: Sink, schema: pa.Schema, *, pipeline: str = "p", store: str | None = None) -> None:
        self.sink, self.pipeline = sink, pipeline
        self.store = CheckpointStore(store or sink.store_url() or "")
        self.driver = Driver(pipeline, self.store, {sink.name: sink.recover(pipeline)}, _out_of_patience)
        try:
            self._open(schema)
        except BaseException:
            self.close()
            raise

    def _open(self, schema: pa.Schema) -> None:
        self.started = self.driver.run(start((self.sink.name,), Initial(Positions.of({"t/0": 0}), from_ledger=True)))
        self.open(schema)
        self._at = dict(self.started.start.items)["t/0"] if self.started.start else 0

    def open(self, schema: pa.Schema) -> None:
        """What a query does before its first epoch; another may follow in the same life, with other columns."""
        self.driver.committers[self.sink.name].close()
        committer = self.driver.committers[self.sink.name] = self.sink.open(self.pipeline, schema)
        if isinstance(committer, LastResource) and self.sink.guarantee().atomic_epoch:
            self.driver.last_resource = self.sink.name

    def run(self, *tasks: Batches | pa.RecordBatch, doing: Callable[[], None] = lambda: None) -> Outcome:
        """One epoch, with a writer for each task. `doing` runs when all are prepared."""
        assert isinstance(self._at, int)
        span = Range(Positions.of({"t/0": self._at}), Positions.of({"t/0": self._at + 1}))
        through = (self.sink.name,) if self.sink.guarantee().kind is SinkKind.WRITE_THROUGH else ()
        request = EpochRequest(span, "query", self._at, "fingerprint", (self.sink.name,), through, self._at > 0)

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            prepared = [self.prepared(record, task) for task in tasks]
            doing()
            return tuple(committable for committable in prepared if committable is not None)

        outcome = self.driver.run(epoch(self.started.generation, self.started.store_id, request), write)
        self._at += 1
        return outcome

    def prepared(self, record: EpochRecord, batches: Batches | pa.RecordBatch) -> Committable | None:
        task = TaskId(self.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        writer = self.sink.writer(task)
        try:
            for batch in [batches] if isinstance(batches, pa.RecordBatch) else batches:
                writer.write(batch)
            return writer.prepare()
        except BaseException:
            writer.abort()
            raise

    def close(self) -> None:
        for committer in self.driver.committers.values():
            committer.close()
        self.store.close()

    def __enter__(self) -> Epochs:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _out_of_patience(pause: Pause) -> None:
    raise pause.because
