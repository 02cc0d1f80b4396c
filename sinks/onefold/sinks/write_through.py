"""A destination that is written through: rows show as they are written, and nothing can be taken back.

So a writer only writes, and all that the driver's committer does is in its notes: which epoch was begun, written whole,
complete.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.core.contract import (
    Announcement,
    Binding,
    Committable,
    Decided,
    EpochRecord,
    LedgerEntry,
    SinkKind,
    TaskId,
)
from onefold.core.errors import CheckpointMismatch, Damaged, Retriable, WorkLost
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions
from onefold.core.protocol.binding import UNBOUND, bound, check_forward
from onefold.core.writing.topic_identity import counts_offsets
from onefold.sinks.epoch_log import EpochLog, LedgerState
from onefold.sinks.sink_writer import AttemptWriter

_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class ErrorNames:
    """What the errors of one sink of one pipeline call things.

    `sink` is its name, and `where` says of which pipeline too; `ledger` has the notes, `target` the rows (`the topic
    'orders'`), and `servers` keep both (`the brokers are`).
    """

    sink: str
    where: str
    ledger: str
    target: str
    servers: str


class WritingThrough(AttemptWriter):
    """One attempt of one task. `abort` drops what is not written yet; the epoch is written again over the rest."""

    def __init__(self, sink: str, task: TaskId, schema: pa.Schema) -> None:
        super().__init__(sink, SinkKind.WRITE_THROUGH, task, schema)

    def _prepare(self) -> str:
        self._finish()
        task = self._task
        return f"{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}"

    @abstractmethod
    def _finish(self) -> None:
        """Write what is left: all rows have come, and readers see them afterwards."""


class AnnouncingCommitter:
    """Idempotent, from any process."""

    def __init__(self, names: ErrorNames, notes: EpochLog, counts: Sequence[str] = ()) -> None:
        """`counts`: the columns by which the destination compares rows with those that are there."""
        self._names, self._notes, self._counts = names, notes, counts

    def counted(self) -> Mapping[str, Collection[Positions]]:
        if not counts_offsets(self._counts):
            return {}
        return {pipeline: state.ends for pipeline, state in self._notes.others().items()}

    def announce(self, record: EpochRecord) -> None:
        new = Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)
        state = self._notes.read()
        new = self._following(state, new)
        if state.announced != new:
            self._following(self._notes.write(replace(state, announced=new), new.generation), new)

    def _following(self, state: LedgerState, new: Announcement) -> Announcement:
        """What is announced after that state. Raises Fenced; CheckpointMismatch where the epoch was begun otherwise."""
        old = state.announced
        for there in (state.entry, old):
            check_forward(there, new, self._names.sink)
        if old is None or old.epoch != new.epoch:
            return new
        if (old.timestamp_ms, old.range) != (new.timestamp_ms, new.range):
            raise CheckpointMismatch(
                "epoch-begun-otherwise",
                f"{self._names.where}: epoch {new.epoch} was begun at {old.timestamp_ms} ms, up to"
                f" {old.range.end.to_json()}, and is now to be one of {new.timestamp_ms} ms up to"
                f" {new.range.end.to_json()}: the checkpoint store is an older copy, or another. Restore the one"
                " that the pipeline had",
            )
        return replace(new, is_written=old.is_written)

    def verify(self, committables: Sequence[Committable]) -> None:
        """Nothing is prepared: the rows show."""

    def seal(self, committables: Sequence[Committable]) -> None:
        # As the generation that wrote: where a newer one has been here since, nothing is noted, and it never decides.
        for epoch, generation in sorted({(c.epoch, c.generation) for c in committables}):
            state = self._notes.read()
            told = state.announced
            if told is None or told.epoch < epoch:
                raise WorkLost(
                    "announcement-lost",
                    f"{self._names.where}: {self._names.ledger} knows nothing of epoch {epoch}, which was announced"
                    " there: it is another copy. The epoch's writers must run again",
                )
            if told.epoch == epoch and not told.is_written:
                self._notes.write(replace(state, announced=replace(told, is_written=True)), generation)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """All of it shows: only look that these are the servers that it was written to."""
        failpoint("announced:commit")
        record, told = decided.record, self._notes.read().announced
        if told is not None and told.epoch > record.epoch:
            return
        if told is None or (told.epoch, told.timestamp_ms) != (record.epoch, record.timestamp_ms):
            raise Damaged("epoch-notes-lost", self._evidence(record, "does not know that it was begun"))
        if committables and not told.is_written:
            raise Damaged("epoch-notes-lost", self._evidence(record, "does not know that it was written whole"))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Nothing can be taken back."""

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:  # noqa: ARG002 - the contract's
        return ()

    def ledger(self) -> LedgerEntry | None:
        state = self._notes.read()
        if state == LedgerState():
            return None
        return replace(state.entry or UNBOUND, announced=state.announced)

    def bind(self, binding: Binding) -> None:
        for _ in range(_TRIES_MAX):
            state = self._notes.read()
            row = bound(state.entry, binding, self._names.sink)
            if row == state.entry or self._notes.write(replace(state, entry=row), row.generation).entry == row:
                return
        raise Retriable(
            "ledger-contended",
            f"{self._names.where}: others have written {self._names.ledger} {_TRIES_MAX} times meanwhile",
        )

    def write_ledger(self, entry: LedgerEntry) -> None:
        entry = replace(entry, members=(), announced=None)
        there = self._notes.read().entry
        check_forward(there, entry, self._names.sink)
        if there == entry:
            return
        stands = self._notes.write(LedgerState(entry), entry.generation).entry
        check_forward(stands, entry, self._names.sink)
        if stands != entry:
            raise CheckpointMismatch(
                "two-copies-of-store",
                f"{self._names.where}: {self._names.ledger} has another row of epoch {entry.epoch} and generation"
                f" {entry.generation} than this driver wrote: two copies of one store have run this pipeline. Stop one"
                " of them, and start the other again: it compares what is left, and says what can be done",
            )

    def close(self) -> None:
        self._notes.close()

    def _evidence(self, record: EpochRecord, what: str) -> str:
        return (
            f"{self._names.where}: epoch {record.epoch} was decided, and {self._names.ledger} {what}:"
            f" {self._names.servers} an older copy, or others. Its rows may be missing in {self._names.target}."
            f" Restore the newer copy; or write them by hand, from the source's {record.range.start.to_json()} to"
            f" {record.range.end.to_json()}"
        )
