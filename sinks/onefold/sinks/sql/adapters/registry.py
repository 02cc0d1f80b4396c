"""Which class speaks for which database."""

from __future__ import annotations

import sqlalchemy as sa

from onefold.clients.sql.url import DatabaseUrl
from onefold.sinks.sql.adapters.adapter import Adapter
from onefold.sinks.sql.adapters.mariadb import MariaDbAdapter
from onefold.sinks.sql.adapters.sqlite import SqliteAdapter

__all__ = ["adapter_of"]


def adapter_of(url: DatabaseUrl, dialect: sa.Dialect | None = None) -> Adapter:
    """By the URL, of those that `clients.sql.backend` knows; once connected, `dialect` tells MariaDB from MySQL."""
    match url.kind:
        case "sqlite":
            return SqliteAdapter()
        case name:
            return MariaDbAdapter(bool(getattr(dialect, "is_mariadb", name == "mariadb")))
