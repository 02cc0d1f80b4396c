"""The real driver: performs the protocol's effects on a store, committers, writers and a query's checkpoint.

Of store and checkpoint it asks no more than the Protocols here. The simulator has both in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar
from typing import Protocol as Port

from onefold.core.checks import present
from onefold.core.contract import (
    Committable,
    Committer,
    Decided,
    EpochRecord,
    Generation,
    Joined,
    Joining,
    LedgerEntry,
    WriteThrough,
)
from onefold.core.errors import OnefoldError
from onefold.core.failpoints import failpoint
from onefold.core.moves import Repeats
from onefold.core.positions import Positions
from onefold.core.protocol.committer_kinds import last_resource, write_through
from onefold.core.protocol.effects import (
    Abort,
    AcceptDamage,
    AcquireGeneration,
    Adopt,
    Anchor,
    Announce,
    AskRepeats,
    Bind,
    Commit,
    Complete,
    Decide,
    Effect,
    EpochRequest,
    FindEpoch,
    Freeze,
    ListFolder,
    ListLeftovers,
    MarkDamaged,
    OpenEpoch,
    Pause,
    Protocol,
    ReadClock,
    ReadFile,
    ReadLedger,
    ReadMoves,
    ReadStore,
    RunWriters,
    SetAside,
    StoreFacts,
    Verify,
    WriteLedger,
)

T = TypeVar("T")
RunWritersHere = Callable[[EpochRecord], tuple[Committable, ...]]
Merge: TypeAlias = Callable[[Any], None]  # it gets the driver's own connection (DB-API)


@dataclass(frozen=True, slots=True)
class JoinedMerge:
    """A merge step by step, what it has to have loaded before, and the same in the message that begins the transaction,
    where that can be: of a store that can do both."""

    merge: Merge
    joined: Joined | None
    loading: Sequence[Any] = ()

    def __call__(self, connection: Any) -> None:
        self.merge(connection)


class Files(Port):
    """The files of a query's checkpoint, on any filesystem. Raises `Retriable` where it doesn't answer."""

    def read(self, path: str) -> str | None: ...

    def names(self, folder: str) -> Sequence[str]: ...


class Store(Port):
    """A checkpoint store. Every call is one transaction; `CheckpointStore` documents each."""

    def id(self) -> str: ...

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation: ...

    def facts(self, pipeline: str) -> StoreFacts: ...

    def freeze(self, generation: Generation, initial: Positions) -> Positions: ...

    def find(self, pipeline: str, request: EpochRequest) -> EpochRecord | None: ...

    def open_epoch(
        self,
        generation: Generation,
        request: EpochRequest,
        after: int,
        now_ms: int,
        completes: Decided | None = None,
    ) -> EpochRecord: ...

    def decide(
        self,
        generation: Generation,
        record: EpochRecord,
        manifest: Sequence[Committable],
        now_ms: int,
        merge: Merge | None = None,
        completes: Decided | None = None,
    ) -> Decided: ...

    def complete(self, generation: Generation, decided: Decided, now_ms: int) -> None: ...

    def damage(self, generation: Generation, decided: Decided, evidence: str) -> None: ...

    def accept_damage(self, generation: Generation, record: EpochRecord) -> Decided: ...

    def moves(self, pipeline: str) -> Sequence[EpochRecord]: ...

    def anchor(self, generation: Generation, origin: Positions) -> None: ...

    def adopt(self, generation: Generation, entry: LedgerEntry, sinks: tuple[str, ...], now_ms: int) -> None: ...


class Coordinator:
    """Runs a protocol generator to its end, in this thread.

    `pause` waits before the protocol asks again, and raises the error it is given when it is out of patience. It is
    also told when the last effect was begun, on the monotonic clock.
    `last_resource` names the one sink whose merge is part of the decision, if there is one. `files` is where the
    query's checkpoint is, of a pipeline that has one. `repeats` and `set_aside` answer AskRepeats and SetAside, of a
    driver that moves the positions. `on_acquired` is told each new generation. With `goes_on` a start is refused as
    Fenced where another process took over since the last one here.
    """

    def __init__(
        self,
        pipeline: str,
        store: Store,
        committers: Mapping[str, Committer],
        pause: Callable[[Pause, float], None],
        last_resource: str | None = None,
        files: Files | None = None,
        on_acquired: Callable[[Generation], None] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.store = store
        self.committers = dict(committers)
        self.pause = pause
        self.last_resource = last_resource
        self.files = files
        self.repeats: Callable[[str], Repeats] | None = None
        self.set_aside: Callable[[int], None] | None = None
        self.on_acquired = on_acquired
        self.goes_on = False
        self.waiting_for: OnefoldError | None = None  # the error after which the protocol asks again
        self._acquired: Generation | None = None
        self._asked_s = time.monotonic()

    def run(self, protocol: Protocol[T], run_writers: RunWritersHere | None = None) -> T:
        """Drive `protocol` and return its result. `run_writers` is needed by `epoch` alone."""
        try:
            effect = next(protocol)
            while True:
                name = type(effect).__name__
                failpoint(f"before:{name}")
                try:
                    answer = self.perform(effect, run_writers)
                except OnefoldError as error:
                    effect = protocol.throw(error)
                else:
                    if not isinstance(effect, Pause):
                        self.waiting_for = None
                    failpoint(f"after:{name}")
                    effect = protocol.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            self.waiting_for = None

    def perform(self, effect: Effect, run_writers: RunWritersHere | None = None) -> Any:
        """Carry out one effect, and answer as it says."""
        store, now_ms = self.store, time.time_ns() // 1_000_000
        if not isinstance(effect, Pause):
            self._asked_s = time.monotonic()
        match effect:
            case AcquireGeneration(above):
                self._acquired = store.acquire(self.pipeline, above, self._acquired if self.goes_on else None)
                if self.on_acquired is not None:
                    self.on_acquired(self._acquired)
                return self._acquired
            case ReadLedger(sink):
                return self.committers[sink].ledger()
            case Bind(sink, binding):
                return self.committers[sink].bind(binding)
            case ReadStore():
                return store.facts(self.pipeline)
            case ReadFile(path):
                return present(self.files, "only a query has a checkpoint").read(path)
            case ListFolder(path):
                return present(self.files, "only a query has a checkpoint").names(path)
            case ReadMoves():
                return store.moves(self.pipeline)
            case AskRepeats(sink):
                return present(self.repeats, "a move asks what repeats make of a sink")(sink)
            case Anchor(generation, origin):
                return store.anchor(generation, origin)
            case SetAside(after):
                return present(self.set_aside, "a move sets the checkpoint aside")(after)
            case Adopt(generation, entry, sinks):
                return store.adopt(generation, entry, sinks, now_ms)
            case Freeze(generation, initial):
                return store.freeze(generation, initial)
            case FindEpoch(request):
                return store.find(self.pipeline, request)
            case ReadClock():
                return now_ms
            case OpenEpoch(generation, request, after, completes):
                return store.open_epoch(generation, request, after, now_ms, completes)
            case Announce(sink, record):
                return write_through(self.committers[sink]).announce(record)
            case RunWriters(record):
                return present(run_writers, "an epoch needs a function that runs its writers")(record)
            case Verify(sink, committables):
                committer = self.committers[sink]
                return (committer.seal if isinstance(committer, WriteThrough) else committer.verify)(committables)
            case Decide(generation, record, manifest, completes):
                named = tuple(replace(each, payload=b"") if each.payload else each for each in manifest)
                merge = self._merge(generation, record, manifest)
                return store.decide(generation, record, named, now_ms, merge, completes)
            case Commit(sink, decided):
                return self.committers[sink].commit(decided, decided.of(sink))
            case WriteLedger(sink, entry):
                return self.committers[sink].write_ledger(entry)
            case Complete(generation, decided):
                return store.complete(generation, decided, now_ms)
            case MarkDamaged(generation, decided, evidence):
                return store.damage(generation, decided, evidence)
            case AcceptDamage(generation, record):
                return store.accept_damage(generation, record)
            case ListLeftovers(sink, up_to_generation):
                return self.committers[sink].leftovers(up_to_generation)
            case Abort(sink, committables):
                return self.committers[sink].abort(committables)
            case Pause(because=error):
                self.waiting_for = error
                return self.pause(effect, self._asked_s)

    def _merge(self, generation: Generation, record: EpochRecord, manifest: tuple[Committable, ...]) -> Merge | None:
        """The last-resource sink's part of the decision: its rows and its ledger row, in the store's transaction."""
        if self.last_resource is None:
            return None
        committer = last_resource(self.committers[self.last_resource])
        mine = tuple(c for c in manifest if c.sink == self.last_resource)
        entry = LedgerEntry(
            epoch=record.epoch,
            generation=generation.number,
            timestamp_ms=record.timestamp_ms,
            positions=record.range.end,
            store_id=self.store.id(),
        )

        def merge(connection: Any) -> None:
            committer.merge(connection, record, mine, entry)

        if not isinstance(committer, Joining):
            return merge
        return JoinedMerge(merge, committer.joined(record, mine, entry), committer.loading(mine))
