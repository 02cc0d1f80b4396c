"""SqlSink: what a user names, and what travels to the executors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onefold.clients.exposure import of_url
from onefold.clients.options import constructed_from
from onefold.clients.sql.database_backend import with_driver
from onefold.clients.sql.sqlite import check_whole_path
from onefold.clients.sql.url import url_of
from onefold.core.contract import Committer, Guarantee, SinkKind, SinkWriter, TaskId
from onefold.core.errors import ConfigError
from onefold.core.extras import naming_extras
from onefold.core.findings import Checks, Finding, Target, passed
from onefold.sinks.sink_writer import opened
from onefold.sinks.sql import open_checks, staging, target
from onefold.sinks.sql.adapters.adapter import Adapter
from onefold.sinks.sql.bookkeeping import SqlBookkeeping
from onefold.sinks.sql.committer import SqlCommitter
from onefold.sinks.sql.databases import adapter_of, database_of, dialect_of
from onefold.sinks.sql.naming import check_users
from onefold.sinks.sql.sink_plan import SqlPlan
from onefold.sinks.sql.writer import SqlWriter
from onefold.sinks.staged.table_options import SqlSinkConfig
from onefold.sinks.staged.table_sink import TableSink

if TYPE_CHECKING:
    from onefold.sinks.postgres.sink import PostgresSink


class SqlSink(TableSink[SqlSinkConfig]):
    """Writes rows to a table of a SQL database: SQLite or MariaDB through SQLAlchemy; Postgres as PostgresSink does.

    `url` is SQLAlchemy's: `mariadb://user:password@host:port/database`, `sqlite:////var/lib/orders.db`,
    `postgresql://...`. `table` is `orders` or `shop.orders`, in the case that the catalogue has; it is created if it is
    missing. With a Postgres URL this makes a `PostgresSink` with `delivery="staged"`.

    `mode="append"` inserts every row. `mode="upsert"` keeps one row for each `key`: the newest, which the columns
    `order` tell, within an epoch and across epochs. An older one never overwrites it, and an equal one leaves what is
    there; a row whose key or order is null is refused, and a null order that the table has already counts as the
    oldest. The table needs a unique index on exactly the key's columns.

    A row whose boolean column `delete_when_true` is true, or whose column `delete_when_null` is null, deletes its key's
    row, if that is not newer, and is remembered for `deletes_kept_s` seconds, by the epochs' own time, so that a late
    older record does not bring the row back. The column of `delete_when_true` is not written.

    Every task fills a stage, and the driver moves an epoch's rows in one transaction, which is also the decision: the
    checkpoint store has to live in this database (`store_url`). Raises ConfigError for settings that make no sense.
    """

    __signature__ = inspect.signature(SqlSinkConfig)  # for help() and editors, which would look at __new__

    def __new__(cls, *arguments: Any, **options: Any) -> SqlSink:
        if not arguments and not options:  # it is unpickled
            return super().__new__(cls)
        config = SqlSinkConfig(*arguments, **options)
        if url_of(config.url, "the SQL sink's").kind != "postgresql":
            return super().__new__(cls)
        return _on_postgres(config)  # type: ignore[return-value]  # another class's: no __init__

    @constructed_from(SqlSinkConfig)
    def __init__(self, config: SqlSinkConfig) -> None:
        check_users(config.target)
        self._settings = replace(config, url=_complete(config.url))
        self._plan: SqlPlan | None = None

    def __repr__(self) -> str:
        mode = "upsert" if self._settings.changes else "append"
        return f"SqlSink(table={self.table!r}, name={self.name!r}, mode={mode!r})"

    def guarantee(self) -> Guarantee:
        changes = self._settings.changes
        conditions = (
            *self._adapter.conditions,
            "the checkpoint store lives in the same database",
            *((*changes.conditions, "no other pipeline upserts into the table") if changes else ()),
        )
        return Guarantee("staged", SinkKind.LAST_RESOURCE, True, conditions)

    def checks(self, pipeline: str, schema: pa.Schema | None) -> Checks[Committer | None]:
        has_ledger = yield from open_checks.checks(self._settings, pipeline, schema)
        return SqlCommitter(self._settings, pipeline, None) if has_ledger else None

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterator[Finding]:  # noqa: ARG002
        database = database_of(self._settings, pipeline)
        if database.is_there():
            with database.connected() as connection:
                yield from adapter_of(connection.dialect).examine(connection)
        database.close()

    def target_now(self, pipeline: str) -> Target:
        database, name = database_of(self._settings, pipeline), f"table {self.table}"
        if not database.is_there():
            return Target(name, is_there=False)
        with database.connected() as connection:
            return Target(name, target.is_there(connection, self._settings.target))

    def is_empty(self, pipeline: str) -> bool:
        with database_of(self._settings, pipeline).connected() as connection:
            return target.is_empty(connection, self._settings.target)

    def exposure(self) -> str:
        return of_url(self.url, "the SQL sink's")

    def store_url(self) -> str | None:
        return self._settings.url

    def recover(self, pipeline: str) -> Committer:
        with database_of(self._settings, pipeline).making_tables() as connection:
            SqlBookkeeping(pipeline, self.name).create(connection)
        return SqlCommitter(self._settings, pipeline, None)

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        database = database_of(self._settings, pipeline)
        passed(open_checks.checks(self._settings, pipeline, schema))
        with database.making_tables() as connection:
            SqlBookkeeping(pipeline, self.name).create(connection)
            self._plan = open_checks.resolve(connection, self._settings, pipeline, schema)
        with database.connected() as connection:
            # What merges will do, of no rows: what the role may not do, or the table not take, shows now.
            staging.move(connection, self._plan, (), 0)
        committer = SqlCommitter(self._settings, pipeline, self._plan)
        committer.ledger()  # from here on it notices a server that is an older copy
        return committer

    def writers_max(self) -> int | None:
        return self._adapter.writers_max

    @property
    def _adapter(self) -> Adapter:
        return adapter_of(dialect_of(url_of(self.url, "the SQL sink's")))

    def writer(self, task: TaskId) -> SinkWriter:
        return SqlWriter(self._settings, opened(self._plan, self.name), task)


def _on_postgres(config: SqlSinkConfig) -> PostgresSink:
    """libpq is told what `config.url` says. Raises ConfigError for another driver's."""
    with naming_extras():  # nobody needs psycopg to write to MariaDB
        from onefold.clients.postgres.store import conninfo_of
        from onefold.sinks.postgres.sink import PostgresSink

    url = with_driver(url_of(config.url, "the SQL sink's"))
    return PostgresSink(**{**asdict(config), "url": conninfo_of(url)}, delivery="staged")


def _complete(url: str) -> str:
    """With the driver named. Raises ConfigError for a file without its whole path."""
    made = with_driver(url_of(url, "the SQL sink's"))
    if made.kind == "sqlite" and made.database in (None, "", ":memory:"):
        raise ConfigError(
            "sqlite-in-memory",
            "a SQLite database in memory ends with its process: name a file, sqlite:////path/file.db",
        )
    check_whole_path("url", made)
    return made.whole()
