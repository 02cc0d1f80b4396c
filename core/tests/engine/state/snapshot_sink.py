"""A sink whose rows are entries of snapshots, so that check_sink's calls reach the participant `state`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from onefold.core import Committable, TaskId
from onefold.core.contract import SinkWriter
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter, StateSink, committable
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage

ROWS = StateSpec("rows", "rows", StateKind.VALUE)


@dataclass(frozen=True, slots=True)
class SnapshotSink(StateSink):
    def writer(self, task: TaskId) -> SinkWriter:
        return SnapshotWriter(self.root, task)


@dataclass(slots=True)
class SnapshotWriter:
    root: str
    task: TaskId
    ids: list[int] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        self.ids += batch.column("id").to_pylist()

    def prepare(self) -> Committable | None:
        if not self.ids:
            return None
        backend = MemoryBackend(Storage(self.root, self.task.pipeline), self.task.generation)
        backend.table(ROWS).put_many([(i,) for i in self.ids], [()] * len(self.ids))
        return replace(committable(backend.freeze(self.task.epoch).store()), rows=len(self.ids))

    def abort(self) -> None:
        self.ids.clear()


def rows(root: str) -> Iterator[int]:
    """The entries of all snapshots that are decided."""
    for committer in _committers(root):
        for note in committer._notes():
            for handle in note.handles:
                backend = MemoryBackend(committer.storage, 0)
                backend.restore([handle], range(128))
                yield from (key[0] for key, _, _ in backend.table(ROWS).scan())


def prepared(root: str) -> int:
    """Files of snapshots that no decided epoch names, asked of the folder."""
    return sum(len(_files(c) - {name for note in c._notes() for name in note.files}) for c in _committers(root))


def _committers(root: str) -> Iterable[StateCommitter]:
    for folder in Path(root).iterdir() if Path(root).is_dir() else ():
        yield StateCommitter(Storage(root, unquote(folder.name)))


def _files(committer: StateCommitter) -> set[str]:
    return {name for name in committer.storage.below("") if name.partition("/")[0].isdigit()}
