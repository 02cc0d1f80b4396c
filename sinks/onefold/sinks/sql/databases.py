"""The sink's database, spoken to through SQLAlchemy on connections of the checkpoint store's kind; kept per process and
shared by whatever works for one sink of one pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from onefold.clients.per_process import PerProcess
from onefold.clients.sql.database import Database
from onefold.clients.sql.database_backend import reason
from onefold.clients.sql.url import DatabaseUrl
from onefold.core.errors import ConfigError
from onefold.sinks.sql.adapters.adapter import Adapter
from onefold.sinks.sql.adapters.mariadb import MariaDbAdapter
from onefold.sinks.sql.adapters.sqlite import SqliteAdapter
from onefold.sinks.staged.table_options import SqlSinkConfig


class SqlDatabase(Database):
    """Its errors are those of `Database`."""

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        """A transaction, as SQLAlchemy's connection."""
        with self.transaction() as transaction, over(self, transaction.connection) as connection:
            yield connection

    @contextmanager
    def making_tables(self) -> Iterator[sa.Connection]:
        """The same, in which nobody else creates onefold's tables."""
        with self.creating() as transaction, over(self, transaction.connection) as connection:
            yield connection


_databases = PerProcess(dict[tuple[str, SqlSinkConfig], SqlDatabase])


def database_of(settings: SqlSinkConfig, pipeline: str) -> SqlDatabase:
    """`close` lets its idle connections go; it can be used again."""
    key = (pipeline, settings)
    with _databases.lock:
        if key not in _databases.now:
            who = settings.where(pipeline)
            _databases.now[key] = SqlDatabase(settings.url, settings.lock_timeout_s, who, f"onefold {pipeline}")
        return _databases.now[key]


def adapter_of(dialect: sa.Dialect) -> Adapter:
    """Which class speaks for that database."""
    return SqliteAdapter() if dialect.name == "sqlite" else MariaDbAdapter(bool(getattr(dialect, "is_mariadb", False)))


def dialect_of(url: DatabaseUrl) -> sa.Dialect:
    """As far as it is known without a connection."""
    return sa.make_url(f"{url.dialect}://").get_dialect()()


@contextmanager
def over(database: SqlDatabase, driver: Any) -> Iterator[sa.Connection]:
    """A driver's connection in the middle of a transaction, which SQLAlchemy neither begins nor ends. The driver's
    errors leave it as they are."""
    if not hasattr(driver, "onefold_engine"):  # what the dialect asks its server, it asks once
        url = f"{database.url.dialect}://"
        engine = sa.create_engine(url, creator=lambda: driver, poolclass=sa.StaticPool, pool_reset_on_return=None)
        for ending in ("do_commit", "do_rollback"):
            setattr(engine.dialect, ending, lambda _: None)
        driver.onefold_engine = engine
    try:
        with driver.onefold_engine.connect() as connection:
            yield connection
    except sa.exc.SQLAlchemyError as error:
        cause = getattr(error, "orig", None)
        if isinstance(cause, database.backend.error):
            raise cause from error
        raise ConfigError(
            "database-call-invalid",
            f"{database.who} at {database} refused: {reason(error).rstrip('.?')}. Asking again changes nothing",
        ) from error


def creating(dialect: sa.Dialect, tables: Iterable[sa.Table]) -> list[str]:
    """CREATE TABLE and CREATE INDEX of each, in one line each: what SQLAlchemy's `create` sends."""
    made = []
    for table in tables:
        indexes = [CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))]
        parts: list[sa.schema.ExecutableDDLElement] = [CreateTable(table), *indexes]
        for part in parts:
            text = " ".join(line.strip() for line in str(part.compile(dialect=dialect)).strip().splitlines())
            # Where parameters are written with %, SQLAlchemy doubles it in names.
            made.append(text.replace("%%", "%") if dialect.identifier_preparer._double_percents else text)
    return made
