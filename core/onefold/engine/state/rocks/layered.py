"""What the tables of the RocksDB backend share: changes in dicts over a column family."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from onefold.engine.state.rocks.scratch import Naming

Changes = TypeVar("Changes", bound="dict[Any, Any]")


class Layered(Generic[Changes]):
    """`family` is the column family, an Rdict of bytes. `_taken` are the changes that `take` took away and that are not
    in RocksDB yet, the oldest first."""

    def __init__(self, family: Any, naming: Naming, changes: Changes) -> None:
        self._family = family
        self._naming = naming
        self._changes = changes
        self._taken: tuple[Changes, ...] = ()

    @property
    def estimated_entries(self) -> int:
        with self._naming:
            return self._family.property_int_value("rocksdb.estimate-num-keys") or 0

    def take(self) -> Changes:
        changes = self._changes
        self._changes = type(changes)()
        if changes:
            self._taken = (*self._taken, changes)
        return changes

    def drop_taken(self) -> None:
        """The oldest taken changes are in RocksDB."""
        self._taken = self._taken[1:]

    def close(self) -> None:
        """The database is closed only once no family of it is held."""
        self._family = None

    def _layers(self) -> tuple[Changes, ...]:
        """The oldest first. Read before RocksDB is: what leaves `taken` meanwhile is there by then."""
        return (*self._taken, self._changes)
