"""What a source, a sink and the coordinator promise each other. Data crosses it as Arrow record batches.

Everything that a driver sends to an executor pickles: sinks, tasks and committables.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.positions import Positions, Range

_Rows: TypeAlias = bytes
MOVED = "moved"  # the query id of an epoch without rows, which an operator moved the positions by


class SinkKind(enum.Enum):
    """What a sink's `prepare` promises. The protocol handles each kind by its own rules."""

    TWO_PHASE = "two-phase"  # prepare really prepares; commit can only succeed or be repeated
    LAST_RESOURCE = "last-resource"  # merge, ledger row and decision are one transaction of the store's database
    WRITE_THROUGH = "write-through"  # visible at once, and the same however often an epoch is written again


class EpochState(enum.Enum):
    """OPEN -> DECIDED -> COMPLETE, or OPEN -> GIVEN_UP, or DECIDED -> DAMAGED.

    An epoch that writes through is never given up, since its rows may be visible: it runs again, unchanged.
    """

    OPEN = "open"
    DECIDED = "decided"
    COMPLETE = "complete"
    GIVEN_UP = "given_up"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a sink promises as it is set up now, which `mode` it runs in, and under which conditions.

    `prepared_s` is the longest time that prepared work lives; None: until it is committed or aborted. `two_phase_by` is
    the user's setting that makes a last resource a two-phase sink, `delivery='two_phase'`; empty where there is none.
    """

    mode: str
    kind: SinkKind
    atomic_epoch: bool
    conditions: tuple[str, ...] = ()
    prepared_s: float | None = None
    two_phase_by: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """One start of a pipeline. Comparisons use the number and the random token together."""

    pipeline: str
    number: int
    token: str


@dataclass(frozen=True, slots=True)
class TaskId:
    """One attempt of one writer. `timestamp_ms` is T(N), the epoch's own time. `writers` share an epoch: a guess, where
    the runtime does not say how many."""

    pipeline: str
    generation: int
    epoch: int
    timestamp_ms: int
    attempt: uuid.UUID
    writers: int = 64

    def another_attempt(self) -> TaskId:
        """The same task under a fresh attempt id: a runtime may start its own attempt numbers again."""
        return replace(self, attempt=uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Committable:
    """What a writer's prepare left: enough for another process to finish it, or to undo it.

    `kind` tells how: a manifest may be older than today's settings. `handle` is the sink's own name of the work.
    `payload` are rows that are nowhere but here, of a last resource: they go into the decision, and into no manifest.
    """

    sink: str
    kind: SinkKind
    handle: str
    generation: int
    epoch: int
    rows: int
    bytes: int = 0
    payload: _Rows = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch as the store has it. Batch and query id are the runtime's: they never identify a range.

    `write_through` names those of `sinks` that write through.
    """

    pipeline: str
    epoch: int
    generation: int
    state: EpochState
    range: Range
    timestamp_ms: int
    query_id: str
    batch_id: int
    fingerprint: str
    manifest: tuple[Committable, ...] = ()
    sinks: tuple[str, ...] = ()
    write_through: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(committable.rows for committable in self.manifest)

    @property
    def is_move(self) -> bool:
        """Whether it has no rows, and only moved the positions: maybe backwards."""
        return self.query_id == MOVED


@dataclass(frozen=True, slots=True)
class Decided:
    """An epoch past its commit point. Only a store makes these, and sinks commit nothing else."""

    record: EpochRecord

    def __post_init__(self) -> None:
        state = self.record.state
        require(state in (EpochState.DECIDED, EpochState.COMPLETE), f"an epoch that is {state.value} is not decided")

    def of(self, sink: str) -> tuple[Committable, ...]:
        """What the manifest names of one sink."""
        return tuple(c for c in self.record.manifest if c.sink == sink)


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A committed part of an epoch, as the destination shows it: proof that the epoch was decided."""

    epoch: int
    generation: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """The note that a write-through destination gets before an epoch's first row: from then on rows may be visible.

    `seal` sets `is_written` when all writers are done. An older copy of the destination lacks that.
    """

    epoch: int
    generation: int
    timestamp_ms: int
    range: Range
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """The one store and generation from whose drivers a destination accepts work.

    With `takes_over`, on the user's word, it also replaces the binding of another store.
    """

    store_id: str
    generation: int
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A pipeline's ledger row in a destination: the last epoch completed there, and what the destination has beyond.

    `generation` and `store_id` are those of the last `bind`; an empty `store_id` means that nothing bound the row.
    Epoch 0 means that no epoch is complete: the row is only bound, or a first epoch is announced or partly committed.
    `members` are the committed parts of epochs beyond the row.
    """

    epoch: int
    generation: int
    timestamp_ms: int
    positions: Positions
    store_id: str
    members: tuple[CommittedPart, ...] = field(default=())
    announced: Announcement | None = None


class SinkWriter(Protocol):
    """One attempt of one task, in an executor."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def prepare(self) -> Committable | None:
        """After it returns, a crash of this process loses nothing. None if nothing was written."""
        ...

    def abort(self) -> None:
        """Undo this attempt, before prepare; never another's."""
        ...


class Committer(Protocol):
    """The driver's side of a sink. Every call is idempotent, from any process, also after a crash.

    Calls raise `Retriable` where nothing took effect, `InDoubt` where that is unknown, `Terminal` where a second call
    cannot help.
    """

    def verify(self, committables: Sequence[Committable]) -> None:
        """Check that all of it is still there and lives long enough to be committed. Raises `WorkLost`."""
        ...

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """Make them visible, or find that they are. Raises `Damaged` if one can never be committed, after it has made
        all the others visible: there is no second call, and the sweep removes what is still prepared."""
        ...

    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove them; what is gone already is fine."""
        ...

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        """Prepared work of this pipeline and sink, found by name in the destination. Rows are unknown: 0."""
        ...

    def ledger(self) -> LedgerEntry | None: ...

    def bind(self, binding: Binding) -> None:
        """Bind the ledger row to that generation, as `protocol.binding.bound` says; its epoch and positions stay.

        A compare-and-set: from then on the sink refuses what an older generation announces or writes to the ledger.
        Raises `Fenced` where a newer generation has the row, `CheckpointMismatch` where another store has it.
        """
        ...

    def write_ledger(self, entry: LedgerEntry) -> None:
        """Write the ledger row. Raises `Fenced` where its epoch or its generation would become smaller."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class LastResource(Committer, Protocol):
    """A committer whose database is also the checkpoint store's: it joins the decision's own transaction."""

    def shares_store(self, store_id: str) -> bool:
        """Whether the checkpoint store of that id lives in this very database."""
        ...

    def merge(
        self,
        connection: Any,
        record: EpochRecord,
        manifest: Sequence[Committable],
        entry: LedgerEntry,
    ) -> None:
        """Inside the store's transaction, on its connection, which is the driver's own (DB-API): assert the row counts,
        move the rows, write the ledger row.

        Raises `WorkLost`, which rolls the whole decision back, where fewer rows are there than the manifest says.
        """
        ...


@dataclass(frozen=True, slots=True)
class Joined:
    """A last resource's part of a decision as statements of the driver's own, in the message that begins its
    transaction: `before` anything of the store is locked, and `after` the pipeline's row is.

    `check` gets the connection and what they answered. It raises where the rows or the ledger's row are not what they
    should be, which rolls the whole decision back.
    """

    before: Sequence[Any]
    after: Sequence[Any]
    check: Callable[[Any, Sequence[Any]], None]


@runtime_checkable
class Joining(LastResource, Protocol):
    """A last resource that can do without messages of its own, where nothing is in the way. What is, `merge` says."""

    def joined(self, record: EpochRecord, manifest: Sequence[Committable], entry: LedgerEntry) -> Joined | None:
        """What `merge` does; None where only that can do it."""
        ...

    def loading(self, manifest: Sequence[Committable]) -> Sequence[Any]:
        """What sends the rows that come with attempts into the session, from where `merge` takes them: statements in
        the message that begins the transaction, before anything of the store is locked. They change nothing else."""
        ...


@runtime_checkable
class WriteThrough(Committer, Protocol):
    """A committer whose writers' rows are visible at once, under the epoch's T. To write them again changes nothing.

    The coordinator calls `seal` in the place of `verify`. `commit` finds that the epoch was sealed, or raises
    `Damaged`. `verify`, `abort` and `leftovers` have nothing to do.
    """

    def announce(self, record: EpochRecord) -> None:
        """Note the epoch beside the ledger row, before its first writer runs. Raises `Fenced` where epoch or generation
        is below the row's or the last note's, `CheckpointMismatch` where the same epoch has another T."""
        ...

    def seal(self, committables: Sequence[Committable]) -> None:
        """Note beside the announcement that these writers wrote the whole epoch. Raises `WorkLost` where the epoch was
        never announced: the destination is another copy, and the writers must run again."""
        ...


@runtime_checkable
class Counting(Committer, Protocol):
    """A committer whose destination compares rows by numbers in them, and drops a row whose number is not higher."""

    def counted(self) -> Mapping[str, Collection[Positions]]:
        """How far other pipelines wrote there, by their names; empty where the numbers are not a topic's offsets."""
        ...


class Sink(Protocol):
    """A destination, as a user names it. Pickles."""

    @property
    def name(self) -> str: ...

    def guarantee(self) -> Guarantee:
        """Derived from the settings and from what the server allows."""
        ...

    def store_url(self) -> str | None:
        """A SQLAlchemy URL of the sink's own database, if a checkpoint store can live there."""
        ...

    def recover(self, pipeline: str) -> Committer:
        """Driver, before a query starts: finish or undo earlier work; creates the ledger, touches no target."""
        ...

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        """Driver, before the first writers run: probe permissions and settings, create or check the target."""
        ...

    def writers_max(self) -> int | None:
        """How many writers may prepare at once; None for no bound."""
        ...

    def writer(self, task: TaskId) -> SinkWriter:
        """Executor: a writer for one attempt. Only after `open`."""
        ...


@runtime_checkable
class Partitioned(Sink, Protocol):
    """A sink that needs all rows with equal values of some columns from one writer."""

    def partition_by(self) -> tuple[str, ...]:
        """The columns by which rows are partitioned among the writers; none where any writer may take any row."""
        ...


@runtime_checkable
class Ordered(Partitioned, Protocol):
    """A sink whose writers need the rows of their partition in an order."""

    def order_by(self) -> tuple[str, ...]:
        """The columns by which a writer's rows of equal `partition_by` ascend; none where it makes no difference."""
        ...


@runtime_checkable
class InPlace(Sink, Protocol):
    """A sink whose user may promise that rows arrive partitioned and in order."""

    def in_place(self) -> bool:
        """Whether the user promised it: then the runtime neither shuffles nor sorts rows for this sink."""
        ...


@dataclass(frozen=True, slots=True)
class Upsert:
    """How rows replace each other: of those with an equal `key` the highest by `order` stays, or the newest epoch's,
    and of several of these the highest by `within_epoch`. Where the boolean column `delete_when_true` is true, it
    deletes the row of its key."""

    key: tuple[str, ...]
    order: tuple[str, ...] = ()
    delete_when_true: str | None = None
    within_epoch: tuple[str, ...] = ()


@runtime_checkable
class Upserting(Sink, Protocol):
    """A sink that can keep one row of each key."""

    def upsert(self) -> Upsert | None:
        """None where every row stays."""
        ...


@runtime_checkable
class Merging(Sink, Protocol):
    """A sink that can make one row of those of each key, as by their sums."""

    def merges(self) -> bool:
        """Whether it does, as it is set up."""
        ...


@runtime_checkable
class Repeatable(Sink, Protocol):
    """A sink whose rows may be such that records which come again change nothing."""

    def absorbs_repeats(self) -> bool:
        """Whether they are, as it is set up: once all records from some position on have come again, in new epochs,
        the destination is as if they had come once. Of any other sink they are doubled."""
        ...


@runtime_checkable
class Identifying(Sink, Protocol):
    """A write-through sink whose settings decide which rows are equal when an epoch is written again."""

    def identity(self) -> str:
        """These settings as text, the same in every process. A begun epoch runs again only with the same text."""
        ...
