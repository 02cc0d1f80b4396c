"""Whole epochs of the protocol, without Spark: the writers are a team of processes, or this one."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from onefold.core import Committable, EpochRecord, LastResource, Positions, Range, Sink, SinkKind, TaskId
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import EpochRequest, Pause
from onefold.core.protocol.epoch import Initial, StoreCache, complete_last, epoch, start
from onefold.engine.state.participant import StateSink
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["Epochs", "Writers", "new_store"]


class Writers(Protocol):
    """A team of processes, or whoever else writes what it is told to."""

    def go(self, order: Any) -> None: ...

    def answers(self) -> list[Any]: ...


@contextmanager
def new_store(directory: Path) -> Iterator[str]:
    """A checkpoint store of its own, gone afterwards."""
    place = directory / "checkpoints" / uuid.uuid4().hex
    place.mkdir(parents=True)
    try:
        yield f"sqlite:///{place / 'store.db'}"
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Epochs:
    """A pipeline with one sink, or with the engine's state beside it, started. Opens the sink: only then may it travel
    to its writers."""

    def __init__(
        self, sink: Sink, pipeline: str, store_url: str, schema: pa.Schema, state: StateSink | None = None
    ) -> None:
        self._pipeline = pipeline
        self._number = 0
        kind = sink.guarantee().kind
        self._write_through = (sink.name,) if kind is SinkKind.WRITE_THROUGH else ()
        self._store = CheckpointStore(store_url)
        committers = {each.name: each.recover(pipeline) for each in (sink, state) if each is not None}
        self._names = tuple(committers)
        self._driver = Coordinator(pipeline, self._store, committers, _stop)
        self._started, self._cache = self._driver.run(start(self._names, Initial(_position(0)))), StoreCache()
        committer = self._driver.committers[sink.name] = sink.open(pipeline, schema)
        if kind is SinkKind.LAST_RESOURCE:
            assert isinstance(committer, LastResource)
            self._driver.last_resource = sink.name

    def run(self, team: Writers) -> None:
        """One epoch: opened, written by the team, which is sent a task, verified, decided, committed. The one before
        becomes complete."""

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            team.go(TaskId(self._pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4()))
            return tuple(answer for answer in team.answers() if answer is not None)

        read = Range(_position(self._number), _position(self._number + 1))
        request = EpochRequest(read, sinks=self._names, write_through=self._write_through)
        started = self._started
        protocol = epoch(started.generation, started.store_id, request, cache=self._cache)
        self._cache = self._driver.run(protocol, write).cache
        self._number += 1

    def close(self) -> None:
        self._driver.run(complete_last(self._started.generation, self._cache))
        for committer in self._driver.committers.values():
            committer.close()
        self._store.close()


def _position(number: int) -> Positions:
    return Positions.of({"rows/0": number})


def _stop(pause: Pause, asked_s: float) -> None:
    del asked_s
    raise pause.because
