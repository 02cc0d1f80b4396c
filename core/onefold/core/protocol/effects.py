"""The protocol's effects: its requests to the store, the sinks and the writers, one class each.

The protocol yields these and is sent the answers; it does no I/O itself. A driver answers with the type named in each
docstring, or throws one of the errors of `onefold.core.errors` into it: `Retriable` where nothing took effect,
`InDoubt` where that is unknown.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onefold.core.contract import Binding, Committable, Decided, EpochRecord, EpochState, Generation, LedgerEntry
from onefold.core.errors import InDoubt, OnefoldError, Retriable
from onefold.core.positions import Positions, Range


@dataclass(frozen=True, slots=True)
class EpochRequest:
    """A range to process, and the batch and job that ask for it.

    `fingerprint` is `job` or `job/input`: what runs, and, for a source whose positions only count within one checkpoint
    (a restored copy counts the same numbers again for other files), what the range stands for. `continues` where the
    checkpoint has done batches before this one.
    """

    range: Range
    query_id: str = ""
    batch_id: int = 0
    fingerprint: str = ""
    sinks: tuple[str, ...] = ()
    write_through: tuple[str, ...] = ()  # those of `sinks` whose rows show at once
    continues: bool = False

    def has_input_of(self, record: EpochRecord) -> bool:
        """Whether the range stands for the same input as that epoch's."""
        return self.fingerprint.partition("/")[2] == record.fingerprint.partition("/")[2]

    def is_again(self, record: EpochRecord) -> bool:
        """Whether this asks for that very epoch: the same range of the same input, by the same job, into the same
        sinks, whose order is only that in which they commit."""
        is_alike = self.is_into_sinks_of(record) and self.fingerprint == record.fingerprint
        return is_alike and self.range.is_again(record.range)

    def opened(self, generation: Generation, epoch: int, timestamp_ms: int) -> EpochRecord:
        """The epoch that this asks for, before it is decided."""
        return EpochRecord(
            pipeline=generation.pipeline,
            epoch=epoch,
            generation=generation.number,
            state=EpochState.OPEN,
            range=self.range,
            timestamp_ms=timestamp_ms,
            query_id=self.query_id,
            batch_id=self.batch_id,
            fingerprint=self.fingerprint,
            sinks=self.sinks,
            write_through=self.write_through,
        )

    def is_into_sinks_of(self, record: EpochRecord) -> bool:
        """Whether this goes into the sinks of that epoch, each of which writes as it did then."""
        return _sorted(self) == _sorted(record)


def _sorted(of: EpochRequest | EpochRecord) -> tuple[list[str], list[str]]:
    return sorted(of.sinks), sorted(of.write_through)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """All that a pipeline's recovery needs to know of the store, read in one transaction."""

    store_id: str
    generation: int
    last: EpochRecord | None = None  # the last epoch past its commit point: decided or complete
    complete: EpochRecord | None = None  # the last epoch that is complete in every sink
    unfinished: tuple[EpochRecord, ...] = field(default=())  # open, decided or damaged
    frozen: Positions | None = None  # the source's initial positions
    origin: Positions | None = None  # where a new checkpoint's first batch begins, if an operator has moved that
    moved: int = 0  # the last decided epoch that moved the positions; 0 where none did

    @property
    def begun(self) -> EpochRecord | None:
        """The epoch that writes through and was begun: it runs again exactly as it was."""
        return next((r for r in self.unfinished if r.state is EpochState.OPEN), None)


@dataclass(frozen=True, slots=True)
class AcquireGeneration:
    """-> Generation, numbered above `above` and above every earlier one of the store."""

    above: int


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """-> LedgerEntry | None"""

    sink: str


@dataclass(frozen=True, slots=True)
class Bind:
    """-> None: from here on the sink refuses older generations of every store."""

    sink: str
    binding: Binding


@dataclass(frozen=True, slots=True)
class ReadStore:
    """-> StoreFacts"""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """-> str | None: the text of a file in the query's checkpoint; None if it isn't there."""

    path: str


@dataclass(frozen=True, slots=True)
class ListFolder:
    """-> Sequence[str]: the names of the files in a folder of the query's checkpoint; none if it isn't there."""

    path: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """-> Positions: the initial positions on record, which are `initial` if there were none."""

    generation: Generation
    initial: Positions


@dataclass(frozen=True, slots=True)
class ReadMoves:
    """-> Sequence[EpochRecord]: every decided epoch that moved the positions, the oldest first."""


@dataclass(frozen=True, slots=True)
class AskRepeats:
    """-> Repeats: what records that come again make of the sink's destination, as it is now."""

    sink: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """-> None: a new checkpoint's first batch begins here from now on. Compare-and-set on the generation."""

    generation: Generation
    origin: Positions


@dataclass(frozen=True, slots=True)
class SetAside:
    """-> None: the query's checkpoint is not there any more, under its own name. `epoch` is the last decided one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """-> None: the store takes over what the destinations say was completed, on the user's word."""

    generation: Generation
    entry: LedgerEntry
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindEpoch:
    """-> EpochRecord | None: the decided or complete epoch of exactly this range."""

    request: EpochRequest


@dataclass(frozen=True, slots=True)
class ReadClock:
    """-> int: the driver's own clock, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """-> EpochRecord with the stored number and T, of an epoch that writes through. Compare-and-set; asked again, it
    answers with the same.

    `after` is the last epoch past its commit point: a range without records starts where the next one does too, so
    that its positions alone would let a request that was given up for lost open it once more. `completes` is that
    epoch, where the store is to have it as complete from now on, as `Complete` does by itself.
    """

    generation: Generation
    request: EpochRequest
    after: int
    completes: Decided | None = None


@dataclass(frozen=True, slots=True)
class Announce:
    """-> None: the write-through sink notes that rows of the epoch, under its T, may come from now on."""

    sink: str
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class RunWriters:
    """-> tuple[Committable, ...]: what the writers of all sinks prepared, one accepted attempt per task."""

    record: EpochRecord


@dataclass(frozen=True, slots=True)
class Verify:
    """-> None; raises WorkLost where prepared work is gone or about to be. A write-through sink seals the epoch."""

    sink: str
    committables: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """-> Decided. THE commit point: a compare-and-set on generation, number, chain and state, durable when answered.

    `completes` is the epoch before, where the store is to have it as complete from now on, as `Complete` does by
    itself."""

    generation: Generation
    record: EpochRecord
    manifest: tuple[Committable, ...]
    completes: Decided | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """-> None: all that the manifest names of this sink is visible."""

    sink: str
    decided: Decided


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """-> None: the sink's own row says that the epoch is complete there."""

    sink: str
    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Complete:
    """-> None. Compare-and-set on the generation, as MarkDamaged."""

    generation: Generation
    decided: Decided


@dataclass(frozen=True, slots=True)
class MarkDamaged:
    """-> None: decided, and a part of it can no longer be committed."""

    generation: Generation
    decided: Decided
    evidence: str


@dataclass(frozen=True, slots=True)
class AcceptDamage:
    """-> Decided: the damaged epoch, decided again, to be completed as it is, on the user's word."""

    generation: Generation
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class ListLeftovers:
    """-> Sequence[Committable]: the sink's prepared work of this and earlier generations."""

    sink: str
    up_to_generation: int


@dataclass(frozen=True, slots=True)
class Abort:
    """-> None: the work is gone."""

    sink: str
    committables: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """-> None after a while; or the driver, out of patience, raises `because`."""

    attempt: int
    waiting_for: Effect
    because: OnefoldError


Effect = (
    AcceptDamage
    | AcquireGeneration
    | ReadLedger
    | ReadMoves
    | ReadStore
    | AskRepeats
    | Anchor
    | SetAside
    | ReadFile
    | ListFolder
    | Adopt
    | Announce
    | Bind
    | Freeze
    | FindEpoch
    | ReadClock
    | OpenEpoch
    | RunWriters
    | Verify
    | Decide
    | Commit
    | WriteLedger
    | Complete
    | MarkDamaged
    | ListLeftovers
    | Abort
    | Pause
)

T = TypeVar("T")
Protocol = Generator[Effect, Any, T]
"""What yields effects, and returns a T."""


def retry(effect: Effect) -> Protocol[Any]:
    """Yield the effect until it is answered, with a pause after each error. Only for what is safe to repeat."""
    attempt = 0
    while True:
        try:
            return (yield effect)
        except (Retriable, InDoubt) as error:
            attempt += 1
            yield Pause(attempt, effect, error)
