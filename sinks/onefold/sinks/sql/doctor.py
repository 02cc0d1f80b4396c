"""What a SQL sink's guarantee rests on, as the database has it now. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.core.findings import Finding, Level
from onefold.sinks.sql import target
from onefold.sinks.sql.adapters.registry import adapter_of
from onefold.sinks.sql.databases import database_of
from onefold.sinks.sql.plan import Settings

__all__ = ["examine"]


def examine(settings: Settings, pipeline: str) -> Iterator[Finding]:
    """Raises what asking a database raises: also for a table that would be refused when the sink is opened."""
    database = database_of(settings, pipeline)
    if not database.is_there():
        yield Finding(Level.FINE, f"{database} is made by the first start")
        return
    with database.transaction() as connection:
        adapter = adapter_of(database.url, connection.dialect)
        yield from adapter.examine(connection)
        if target.find(connection, adapter, settings.table) is None:
            yield Finding(Level.FINE, f"table {settings.table} is made by the first start")
        elif settings.changes is not None:
            target.check_key(connection, settings.table, settings.changes)
    database.close()
