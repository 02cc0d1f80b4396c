"""SqlSink on Postgres is a PostgresSink that stages."""

from __future__ import annotations

from typing import Any

import psycopg.conninfo
import sqlalchemy as sa

from onefold.core.sql.backends import backend_of
from onefold.sinks.postgres.sink import PostgresSink

__all__ = ["postgres_sink"]


def postgres_sink(url: sa.URL, table: str, **settings: Any) -> PostgresSink:
    """`url` is SQLAlchemy's; what it says is told to libpq word by word. Raises ConfigError for another driver's."""
    _, url = backend_of(url)
    said = {key: value if isinstance(value, str) else ",".join(value) for key, value in url.query.items()}
    named = {"user": url.username, "password": url.password, "host": url.host, "port": url.port, "dbname": url.database}
    given = {**said, **{key: str(value) for key, value in named.items() if value is not None}}
    return PostgresSink(psycopg.conninfo.make_conninfo(**given), table, delivery="staged", **settings)
