"""What all sinks have in common as Python objects: their name, and the settings that they were made of."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from onefold.core.contract import Upsert
from onefold.sinks.staged.table_options import SqlSinkConfig


class Named(Protocol):
    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=Named)
T = TypeVar("T", bound=SqlSinkConfig)


class SettledSink(Generic[S]):
    """A sink as its settings describe it."""

    _settings: S

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def settings(self) -> S:
        """What the sink was told, for those who check its work. It may hold a password: not for logs."""
        return self._settings

    def store_url(self) -> str | None:
        """None: it has no database that could be the checkpoint store."""
        return None

    def writers_max(self) -> int | None:
        """None: as many tasks may write as there are."""
        return None


class TableSink(SettledSink[T]):
    """A sink that writes into a table of a SQL database."""

    @property
    def url(self) -> str:
        """The URL, with the password that it may hold: not for logs."""
        return self._settings.url

    @property
    def table(self) -> str:
        """The table's name, `table` or `schema.table`, quoted only where a name holds a dot or a quote."""
        return str(self._settings.target)

    def upsert(self) -> Upsert | None:
        changes = self._settings.changes
        return None if changes is None else Upsert(changes.key, changes.order, changes.delete_when_true)

    def absorbs_repeats(self) -> bool:
        """A version that comes again is not newer than itself."""
        return self._settings.changes is not None and bool(self._settings.changes.order)
