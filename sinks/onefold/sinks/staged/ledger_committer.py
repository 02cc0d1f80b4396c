"""The ledger of a sink as a row in its database, and the driver's hand there: what does not depend on which that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onefold.core.checks import require
from onefold.core.contract import Binding, Committable, EpochRecord, LedgerEntry
from onefold.core.errors import DataLoss
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions
from onefold.core.protocol.binding import bound, check_forward
from onefold.core.writing.topic_identity import counts_offsets
from onefold.sinks.staged.upsert import Changes


class LedgerMemory:
    """The last epoch that this process knows to be in the destination's ledger, so that a destination which is an older
    copy of itself (a restored backup, a replica that lagged) is noticed."""

    def __init__(self) -> None:
        self._epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def read(self, epoch: int) -> None:
        """The ledger was read anew, and whoever asked compares it with the store."""
        self._epoch = epoch

    def wrote(self, epoch: int) -> None:
        self._epoch = max(self._epoch, epoch)

    def is_older(self, there: int) -> bool:
        return there < self._epoch

    def check(self, where: str, there: int, became: str | None = None) -> None:
        """Called before the ledger moves forward: over a gap it would hide what the server has lost. Raises DataLoss.

        The log of a server is one sequence: if the last row that we know of is there, all before it is.
        """
        if self.is_older(there):
            raise DataLoss(
                "destination-older-copy",
                f"{where}: the ledger stands at epoch {there}, and epoch {self._epoch} was completed there before:"
                f" {became or 'the destination is an older copy'}. Nothing more was written. Bring back the server that"
                " has the rest; or start the pipeline again: it compares the store, the ledger and Spark's checkpoint,"
                " and says how to go on",
            )


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class SinkBookkeeping(ABC, Generic[C]):
    """The bookkeeping of one sink of one pipeline, by connections of one kind."""

    pipeline: str
    sink: str

    def ledger(self, connection: C) -> LedgerEntry | None:
        return self._row(connection)

    def bind(self, connection: C, binding: Binding) -> None:
        """Make the row that generation's, inside the caller's transaction. Raises Fenced, CheckpointMismatch."""
        there = self._row(connection, is_locked=True)
        self._put(connection, there, bound(there, binding, self.sink))

    def locked(self, connection: C) -> LedgerEntry | None:
        """The row, which stays so to the end of the caller's transaction."""
        return self._row(connection, is_locked=True)

    def write_over(self, connection: C, there: LedgerEntry | None, entry: LedgerEntry) -> None:
        """Move the row, which was locked as `there`, forward, inside the caller's transaction. Raises Fenced where a
        newer generation or another store has it, or it stands beyond."""
        check_forward(there, entry, self.sink)
        self._put(connection, there, entry)

    def where(self, epoch: int) -> str:
        """Whose work of which epoch, for errors."""
        return f"pipeline {self.pipeline!r}, sink {self.sink!r}, epoch {epoch}"

    @abstractmethod
    def others(self, connection: C) -> Mapping[str, Collection[Positions]]:
        """Up to where other pipelines wrote through sinks of this name."""

    @abstractmethod
    def _row(self, connection: C, *, is_locked: bool = False) -> LedgerEntry | None:
        """The row as it stands, None if there is none; locked, it stays so to the end of the transaction."""

    @abstractmethod
    def _put(self, connection: C, there: LedgerEntry | None, row: LedgerEntry) -> None:
        """Write the row, which was locked as `there`."""


class LedgerCommitter(ABC, Generic[C]):
    """Reads and writes the ledger, and merges an epoch inside the decision's transaction."""

    _books: SinkBookkeeping[C]

    def __init__(self, sink: str, changes: Changes | None, books: SinkBookkeeping[C]) -> None:
        self._sink, self._changes, self._books = sink, changes, books
        self._memory = LedgerMemory()
        self._merged: LedgerEntry | None = None  # by the last merge, whose decision is maybe not made
        self._decided: LedgerEntry | None = None  # by the last decision that was made

    def ledger(self) -> LedgerEntry | None:
        with self._reading("reading the ledger") as connection:
            self._look(connection)
            found = self._books.ledger(connection)
        self._memory.read(found.epoch if found is not None else 0)
        return found

    def counted(self) -> Mapping[str, Collection[Positions]]:
        if self._changes is None or not counts_offsets(self._changes.order):
            return {}
        with self._reading("reading other pipelines' ledgers") as connection:
            return self._books.others(connection)

    def bind(self, binding: Binding) -> None:
        with self._writing(f"binding the ledger to generation {binding.generation}") as connection:
            self._books.bind(connection, binding)

    def write_ledger(self, entry: LedgerEntry) -> None:
        """Nothing is left to write where the decision's own transaction wrote this very row."""
        if entry == self._decided:
            return
        with self._writing(f"writing the ledger row of epoch {entry.epoch}") as connection:
            self._move_on(connection, entry)
        self._memory.wrote(entry.epoch)

    def merge(self, connection: Any, record: EpochRecord, manifest: Sequence[Committable], entry: LedgerEntry) -> None:
        """Inside the store's transaction, on the store's connection to this same database."""
        require(entry.epoch == record.epoch, f"epoch {record.epoch} with the ledger row of epoch {entry.epoch}")
        mine = [committable for committable in manifest if committable.sink == self._sink]
        with self._deciding(connection, f"merging epoch {record.epoch}") as same:
            self._merge(same, record, mine, entry.generation)
            failpoint("staged.merge")
            self._move_on(same, entry)
        self._merged = entry

    def _was_decided(self, epoch: int) -> None:
        """The decision on that epoch was made: what its merge wrote is in the ledger."""
        self._memory.wrote(epoch)
        if self._merged is not None and self._merged.epoch == epoch:
            self._decided = self._merged

    def _move_on(self, connection: C, entry: LedgerEntry) -> None:
        """Move the ledger's row forward, in the transaction at hand. Raises Fenced, and DataLoss where it is older than
        this process left it."""
        there = self._books.locked(connection)
        if there == entry:  # a decision that merged has written it
            return
        epoch = 0 if there is None else there.epoch
        if self._memory.is_older(epoch):
            self._memory.check(self._where(), epoch, self._became(connection))
        self._books.write_over(connection, there, entry)

    def _look(self, connection: C) -> None:
        """Remember which server it is, whenever the ledger is read."""
        del connection

    def _became(self, connection: C) -> str | None:
        """What the server became since then, where it says that; for people."""
        del connection
        return None

    @abstractmethod
    def _reading(self, doing: str) -> AbstractContextManager[C]: ...

    @abstractmethod
    def _writing(self, doing: str) -> AbstractContextManager[C]:
        """One transaction. What its commit did is in doubt where it was not answered."""

    @abstractmethod
    def _deciding(self, connection: Any, doing: str) -> AbstractContextManager[C]:
        """The store's transaction, as this sink uses it. Raises ConfigError for a store that is elsewhere."""

    @abstractmethod
    def _merge(self, connection: C, record: EpochRecord, mine: Sequence[Committable], generation: int) -> None:
        """Move exactly the manifest's rows, in the transaction at hand. Raises WorkLost, BadRecord."""

    @abstractmethod
    def _where(self) -> str: ...
