"""What a source, a sink and the coordinator promise each other. Data crosses it as Arrow record batches.

Everything that a driver sends to an executor pickles: sinks, tasks and committables.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.positions import Positions, Range

if TYPE_CHECKING:
    import sqlalchemy as sa  # executors import this module, and need no SQL toolkit for it

__all__ = [
    "Announcement",
    "Binding",
    "Committable",
    "CommittedPart",
    "Committer",
    "Counting",
    "Decided",
    "EpochRecord",
    "EpochState",
    "Generation",
    "Guarantee",
    "Identifying",
    "InPlace",
    "LastResource",
    "LedgerEntry",
    "Ordered",
    "Partitioned",
    "Sink",
    "SinkKind",
    "SinkWriter",
    "TaskId",
    "WriteThrough",
]


class SinkKind(enum.Enum):
    """What kind of promise a sink's prepare makes; the protocol treats each as what it is."""

    TWO_PHASE = "two-phase"  # prepare really prepares; commit can only succeed or be repeated
    LAST_RESOURCE = "last-resource"  # merge, ledger row and decision are one transaction of the store's database
    WRITE_THROUGH = "write-through"  # visible at once, and the same however often an epoch is written again


class EpochState(enum.Enum):
    """OPEN -> DECIDED -> COMPLETE, or OPEN -> GIVEN_UP, or DECIDED -> DAMAGED.

    An epoch that writes through is never given up, since its rows may show already: it is run again, as it was.
    """

    OPEN = "open"
    DECIDED = "decided"
    COMPLETE = "complete"
    GIVEN_UP = "given_up"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a sink promises as it is set up now, which `mode` it runs in, and under which conditions.

    `prepared_s` is how long what is prepared lives at most; None: until somebody ends it.
    """

    mode: str
    kind: SinkKind
    atomic_epoch: bool
    conditions: tuple[str, ...] = ()
    prepared_s: float | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """Which incarnation of a pipeline: the number and the random token are compared together."""

    pipeline: str
    number: int
    token: str


@dataclass(frozen=True, slots=True)
class TaskId:
    """One attempt of one writer. `timestamp_ms` is T(N), the epoch's own time."""

    pipeline: str
    generation: int
    epoch: int
    timestamp_ms: int
    attempt: uuid.UUID

    def another_attempt(self) -> TaskId:
        """The same task under a fresh attempt id: stage retries restart Spark's own attempt numbers."""
        return replace(self, attempt=uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Committable:
    """What a writer's prepare left: enough for another process to finish it, or to undo it.

    `kind` tells how: a manifest may be older than today's settings. `handle` is the sink's own name of the work.
    """

    sink: str
    kind: SinkKind
    handle: str
    generation: int
    epoch: int
    rows: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch as the store has it. Batch and query id are Spark's: for people, never for matching ranges.

    `write_through` are those of `sinks` that write through.
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


@dataclass(frozen=True, slots=True)
class Decided:
    """An epoch past its commit point. Only a store hands these out, and only this can be committed."""

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
    """What a write-through destination was told before an epoch's first row came: parts of it may show since then.

    `is_written` once all of its writers were done: an older copy of the destination lacks that note.
    """

    epoch: int
    generation: int
    timestamp_ms: int
    range: Range
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """Who a destination takes work from: the drivers of one store, and of them those of this generation.

    `takes_over` where the user said that the row of another store is to become this one's.
    """

    store_id: str
    generation: int
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a destination itself says of a pipeline: the last epoch completed there, and what it has beyond it.

    `generation` and `store_id` are those that bound the row last; no store: nobody has. Epoch 0 stands for none
    completed: the row is bound, or there are members of a first epoch whose commit was cut short, or an announcement.
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
    """The driver's hand in the destination. Every call is idempotent, from any process, also after a crash.

    Calls raise `Retriable` where nothing took effect, `InDoubt` where that is unknown, `Terminal` where asking
    again cannot help.
    """

    def verify(self, committables: Sequence[Committable]) -> None:
        """All still there, with enough life left; else raises `WorkLost`."""
        ...

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """Make them visible, or find that they are. Raises `Damaged` if one never can be, and only then, once all the
        others are visible: nobody asks again, and what is still prepared will be swept."""
        ...

    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove them; what is gone already is fine."""
        ...

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        """Prepared work of this pipeline and sink, found by name in the destination. Rows are unknown: 0."""
        ...

    def ledger(self) -> LedgerEntry | None: ...

    def bind(self, binding: Binding) -> None:
        """Make the ledger row that generation's, as `protocol.binding.bound` says; it stands where it stood.

        A compare-and-set: what an older generation announces or records after it is refused, whatever it has read.
        Raises `Fenced` where a newer generation has the row, `CheckpointMismatch` where another store has it.
        """
        ...

    def write_ledger(self, entry: LedgerEntry) -> None:
        """Write the ledger row. Epoch and generation only grow, each by itself: else raises `Fenced`."""
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
        connection: sa.Connection,
        record: EpochRecord,
        manifest: Sequence[Committable],
        entry: LedgerEntry,
    ) -> None:
        """Inside the store's transaction: assert the row counts, move the rows, write the ledger row.

        Raises `WorkLost`, which rolls the whole decision back, where fewer rows are there than the manifest says.
        """
        ...


@runtime_checkable
class WriteThrough(Committer, Protocol):
    """A committer whose writers' rows show at once, under the epoch's T: the same again however often they run.

    `verify` notes beside the announcement that the epoch was written whole, `commit` finds that note, or raises
    `Damaged`. `abort` and `leftovers` have nothing to do.
    """

    def announce(self, record: EpochRecord) -> None:
        """Note the epoch beside the ledger row, before its first writer runs. Epoch and generation only grow, also
        those of the row: else `Fenced`; and `CheckpointMismatch` where the same epoch has another T."""
        ...


@runtime_checkable
class Counting(Committer, Protocol):
    """A committer whose destination compares rows by numbers that they bring, and drops those that are not above."""

    def counted(self) -> Mapping[str, Collection[Positions]]:
        """Up to where other pipelines, by name, wrote there; none where the numbers are no offsets of a topic."""
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
    """A sink that cannot take equal values of some columns from two writers at once."""

    def partition_by(self) -> tuple[str, ...]:
        """The columns by which rows are to be shared out among the writers; none where it makes no difference."""
        ...


@runtime_checkable
class Ordered(Partitioned, Protocol):
    """A sink whose writers take the rows that are shared out to them in an order, however many they are."""

    def order_by(self) -> tuple[str, ...]:
        """The columns by which a writer's rows of equal `partition_by` ascend; none where it makes no difference."""
        ...


@runtime_checkable
class InPlace(Sink, Protocol):
    """A sink whose user sees to it that the rows come as its writers need them."""

    def in_place(self) -> bool:
        """Whether that is so: then nothing moves rows from one task to another, or sorts them, on their way to it."""
        ...


@runtime_checkable
class Identifying(Sink, Protocol):
    """A sink that is written through, whose settings decide which rows are the same when an epoch is written again."""

    def identity(self) -> str:
        """These settings as text, the same in every process. An epoch that was begun runs again with the same only."""
        ...
