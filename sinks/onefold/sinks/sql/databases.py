"""Connections to the sink's database, kept per process and shared by whatever works for one sink of one pipeline."""

from __future__ import annotations

from onefold.clients.per_process import PerProcess
from onefold.core.sql.database import Database
from onefold.sinks.sql.plan import Settings

__all__ = ["database_of"]

_databases = PerProcess(dict[tuple[str, Settings], Database])


def database_of(settings: Settings, pipeline: str) -> Database:
    """`close` lets its idle connections go; it can be used again."""
    key = (pipeline, settings)
    with _databases.lock:
        if key not in _databases.now:
            who = f"sink {settings.name!r} of pipeline {pipeline!r}"
            _databases.now[key] = Database(settings.url, settings.lock_timeout_s, who, f"onefold {pipeline}")
        return _databases.now[key]
