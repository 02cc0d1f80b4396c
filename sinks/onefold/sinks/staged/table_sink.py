"""What sinks that write into a table of a SQL database have in common as Python objects."""

from __future__ import annotations

from typing import TypeVar

from onefold.core.contract import Upsert
from onefold.sinks.sink_base import SettledSink
from onefold.sinks.staged.table_options import SqlSinkConfig

S = TypeVar("S", bound=SqlSinkConfig)


class TableSink(SettledSink[S]):
    """A sink of rows that are appended, or versions of those that are there."""

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
