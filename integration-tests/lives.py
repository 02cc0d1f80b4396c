"""A pipeline's driver without Spark: the real protocol, store and sink, and writers in this process."""

from __future__ import annotations

import uuid
from typing import Self

import pyarrow as pa

from onefold.core.contract import Committable, EpochRecord, SinkKind, TaskId
from onefold.core.driver import Driver
from onefold.core.effects import EpochRequest, Pause
from onefold.core.positions import Positions, Range
from onefold.core.protocol import Initial, Outcome, epoch, start
from onefold.core.store import CheckpointStore
from onefold.sinks import PostgresSink

__all__ = ["Life"]


class Life:
    """One life of a driver: it has taken over `pipeline` and recovered it. `open` and `write` are what a query does.

    Nothing is asked twice: the error that would make a real driver wait is raised.
    """

    def __init__(self, sink: PostgresSink, pipeline: str = "p") -> None:
        self.sink, self.pipeline = sink, pipeline
        self.store = CheckpointStore(sink.store_url() or "")
        self.driver = Driver(pipeline, self.store, {sink.name: sink.recover(pipeline)}, _out_of_patience)
        self.started = self.driver.run(start((sink.name,), Initial(Positions.of({"t/0": 0}))))

    def open(self, schema: pa.Schema) -> None:
        committer = self.sink.open(self.pipeline, schema)
        self.driver.committers[self.sink.name].close()
        self.driver.committers[self.sink.name] = committer
        merges = self.sink.guarantee().kind is SinkKind.LAST_RESOURCE
        self.driver.last_resource = self.sink.name if merges else None

    def write(self, *tasks: pa.RecordBatch) -> Outcome:
        """One epoch, a task for each batch, from its opening to Complete."""
        facts = self.store.facts(self.pipeline)
        begin = facts.last.range.end if facts.last else facts.frozen
        assert begin is not None
        end = Positions.of({"t/0": int(dict(begin.items)["t/0"]) + 1})
        request = EpochRequest(Range(begin, end), "q", sinks=(self.sink.name,))
        protocol = epoch(self.started.generation, self.started.store_id, request)
        return self.driver.run(protocol, lambda record: self.prepare(record, *tasks))

    def prepare(self, record: EpochRecord, *tasks: pa.RecordBatch) -> tuple[Committable, ...]:
        writers = []
        for batch in tasks:
            task = TaskId(self.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
            writers.append(self.sink.writer(task))
            writers[-1].write(batch)
        prepared = [writer.prepare() for writer in writers]
        return tuple(committable for committable in prepared if committable is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for committer in self.driver.committers.values():
            committer.close()
        self.store.close()


def _out_of_patience(pause: Pause) -> None:
    raise pause.because
