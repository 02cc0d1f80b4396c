"""Connections to the sink's database, kept per process and shared by whatever works for one sink of one pipeline."""

from __future__ import annotations

import os

from onefold.core.sql.database import Database
from onefold.sinks.sql.plan import Settings

__all__ = ["database_of"]

# By process: a forked child must neither use nor close its parent's connections.
_databases: dict[tuple[int, str, Settings], Database] = {}


def database_of(settings: Settings, pipeline: str) -> Database:
    """`close` lets its idle connections go; it can be used again."""
    key = (os.getpid(), pipeline, settings)
    if key not in _databases:
        who = f"sink {settings.name!r} of pipeline {pipeline!r}"
        _databases[key] = Database(settings.url, settings.lock_timeout_s, who, f"onefold {pipeline}")
    return _databases[key]
