"""The ledger of one sink of one pipeline, as a row in the destination: what does not depend on which database it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from onefold.core.contract import Binding, LedgerEntry
from onefold.core.positions import Positions
from onefold.core.protocol.binding import bound, check_forward

__all__ = ["SinkBookkeeping"]

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
