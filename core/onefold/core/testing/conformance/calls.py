"""The contract's calls as values that another process can make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.contract import (
    Binding,
    Committable,
    Decided,
    EpochRecord,
    Generation,
    Joining,
    LastResource,
    LedgerEntry,
    Sink,
    TaskId,
)
from onefold.core.protocol.committer_kinds import last_resource, write_through
from onefold.core.protocol.coordinator import JoinedMerge, Merge
from onefold.store.checkpoint_store import CheckpointStore

MakeSink = Callable[[], Sink]


@dataclass(frozen=True, slots=True)
class Task:
    """An executor's: the sink comes from the driver, opened and pickled."""

    sink: Sink
    task: TaskId
    batches: tuple[pa.RecordBatch, ...]

    def writer(self, write: bool) -> Any:
        writer = self.sink.writer(self.task)
        for batch in self.batches if write else ():
            writer.write(batch)
        return writer


@dataclass(frozen=True, slots=True)
class Write(Task):
    def ready(self) -> Callable[[], None]:
        writer = self.writer(write=False)

        def write() -> None:
            for batch in self.batches:
                writer.write(batch)

        return write


@dataclass(frozen=True, slots=True)
class Prepare(Task):
    def ready(self) -> Callable[[], Committable | None]:
        prepare: Callable[[], Committable | None] = self.writer(write=True).prepare
        return prepare


@dataclass(frozen=True, slots=True)
class Abandon(Task):
    """The writer's own abort."""

    def ready(self) -> Callable[[], None]:
        abort: Callable[[], None] = self.writer(write=True).abort
        return abort


@dataclass(frozen=True, slots=True)
class Describe:
    """What another process makes of what was pickled: the sink's name, guarantee, and the values it was sent."""

    sink: Sink
    values: tuple[Any, ...]

    def ready(self) -> Callable[[], Any]:
        return lambda: (self.sink.name, self.sink.guarantee(), self.values)


@dataclass(frozen=True, slots=True)
class DriverCall:
    """A driver's, in a new life: the sink is made anew, and nothing is known but the pipeline's name."""

    make_sink: MakeSink
    pipeline: str


@dataclass(frozen=True, slots=True)
class OpenCall(DriverCall):
    schema: pa.Schema

    def ready(self) -> Callable[[], None]:
        sink = self.make_sink()
        return lambda: sink.open(self.pipeline, self.schema).close()


@dataclass(frozen=True, slots=True)
class Recover(DriverCall):
    def ready(self) -> Callable[[], None]:
        sink = self.make_sink()
        return lambda: sink.recover(self.pipeline).close()


@dataclass(frozen=True, slots=True)
class CommitCall(DriverCall):
    decided: Decided
    committables: Sequence[Committable]

    def ready(self) -> Callable[[], None]:
        committer = self.make_sink().recover(self.pipeline)
        return lambda: committer.commit(self.decided, self.committables)


@dataclass(frozen=True, slots=True)
class AbortCall(DriverCall):
    committables: Sequence[Committable]

    def ready(self) -> Callable[[], None]:
        committer = self.make_sink().recover(self.pipeline)
        return lambda: committer.abort(self.committables)


@dataclass(frozen=True, slots=True)
class AnnounceCall(DriverCall):
    record: EpochRecord

    def ready(self) -> Callable[[], None]:
        committer = write_through(self.make_sink().recover(self.pipeline))
        return lambda: committer.announce(self.record)


@dataclass(frozen=True, slots=True)
class Seal(DriverCall):
    committables: Sequence[Committable]

    def ready(self) -> Callable[[], None]:
        committer = write_through(self.make_sink().recover(self.pipeline))
        return lambda: committer.seal(self.committables)


@dataclass(frozen=True, slots=True)
class BindCall(DriverCall):
    binding: Binding

    def ready(self) -> Callable[[], None]:
        committer = self.make_sink().recover(self.pipeline)
        return lambda: committer.bind(self.binding)


@dataclass(frozen=True, slots=True)
class RecordCall(DriverCall):
    entry: LedgerEntry

    def ready(self) -> Callable[[], None]:
        committer = self.make_sink().recover(self.pipeline)
        return lambda: committer.write_ledger(self.entry)


@dataclass(frozen=True, slots=True)
class ReadLedgerCall(DriverCall):
    def ready(self) -> Callable[[], LedgerEntry | None]:
        return self.make_sink().recover(self.pipeline).ledger


@dataclass(frozen=True, slots=True)
class DecideCall(DriverCall):
    """A last-resource sink's decision, in the store's transaction."""

    schema: pa.Schema
    store_url: str
    generation: Generation
    record: EpochRecord
    manifest: tuple[Committable, ...]
    entry: LedgerEntry

    def ready(self) -> Callable[[], Decided]:
        committer = last_resource(self.make_sink().open(self.pipeline, self.schema))
        store = CheckpointStore(self.store_url)
        store.id()
        return lambda: decide(store, committer, self.generation, self.record, self.manifest, self.entry)


def decide(
    store: CheckpointStore,
    committer: LastResource,
    generation: Generation,
    record: EpochRecord,
    manifest: tuple[Committable, ...],
    entry: LedgerEntry,
    after_merge: Merge | None = None,
) -> Decided:
    """A decision as the driver makes it. `after_merge` comes last in the store's transaction."""

    def merge(connection: Any) -> None:
        committer.merge(connection, record, manifest, entry)
        if after_merge is not None:
            after_merge(connection)

    made: Merge = merge
    if isinstance(committer, Joining):
        joined = committer.joined(record, manifest, entry) if after_merge is None else None
        made = JoinedMerge(merge, joined, committer.loading(manifest))
    return store.decide(generation, record, manifest, record.timestamp_ms, made)
