"""PostgresSink: what a user names, and what travels to the executors."""

from __future__ import annotations

import pyarrow as pa

from onefold.core.contract import Committer, Guarantee, SinkKind, SinkWriter, TaskId
from onefold.core.errors import ConfigError
from onefold.sinks.postgres import connection as pool
from onefold.sinks.postgres import plan as plans
from onefold.sinks.postgres import staging, target
from onefold.sinks.postgres.bookkeeping import Bookkeeping
from onefold.sinks.postgres.committer import PostgresCommitter
from onefold.sinks.postgres.naming import Table
from onefold.sinks.postgres.plan import Delivery, Plan, Settings
from onefold.sinks.postgres.writer import PostgresWriter

__all__ = ["PostgresSink"]


class PostgresSink:
    """Appends rows to a Postgres table.

    `url` is what libpq takes: `postgresql://user:password@host:port/database?sslmode=verify-full`.
    `table` is `orders` or `shop.orders`, in the case that the catalogue has; it is created if it is missing.

    `delivery` is
    - `two_phase`: every task prepares a transaction, the driver commits them; readers see a task's rows at once;
    - `staged`: every task fills a stage, the driver moves an epoch's rows in one transaction, which is also the
      decision; the checkpoint store then has to live in this database (`store_url`);
    - `auto`: `two_phase` if the server and the table allow it, else `staged`; `delivery_reason` says why;
    - `at_least_once`: every task commits for itself. No protection, for comparisons.

    `role` is the role that every session works as (SET ROLE): the owner of the tables and of prepared work, whoever
    logs in. The login role must be a member of it.

    The ledger and what else onefold keeps here live in the schema `bookkeeping_schema`, created if it is missing.
    Raises ConfigError for settings that make no sense.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        name: str | None = None,
        delivery: str = "auto",
        lock_timeout_s: float = 30,
        connect_timeout_s: int = 10,
        bookkeeping_schema: str = "onefold_sinks",
        role: str | None = None,
    ) -> None:
        choices = ["auto", *(choice.value for choice in Delivery)]
        if delivery not in choices:
            raise ConfigError(f"delivery={delivery!r} must be one of {', '.join(choices)}")
        if lock_timeout_s <= 0 or connect_timeout_s <= 0:
            raise ConfigError("lock_timeout_s and connect_timeout_s must be above 0: to wait for ever is no setting")
        self._settings = Settings(
            url=url,
            table=Table.parse(table),
            name=name or table,
            delivery=None if delivery == "auto" else Delivery(delivery),
            lock_timeout_s=lock_timeout_s,
            connect_timeout_s=connect_timeout_s,
            bookkeeping_schema=bookkeeping_schema,
            role=role,
        )
        self._settings.conninfo("")  # an unreadable URL is best known now
        self._plan: Plan | None = None

    def __repr__(self) -> str:
        delivery = self._plan.delivery if self._plan else self._settings.delivery
        return (
            f"PostgresSink(table={str(self._settings.table)!r}, name={self.name!r}, "
            f"delivery={delivery.value if delivery else 'auto'!r})"
        )

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def url(self) -> str:
        """The URL as it was given, with the password that it may hold: not for logs."""
        return self._settings.url

    @property
    def table(self) -> str:
        """The table's name, `table` or `schema.table`, quoted only where a name holds a dot or a quote."""
        return str(self._settings.table)

    @property
    def delivery_reason(self) -> str | None:
        """Why the delivery is what it is; None before `open`."""
        return self._plan.reason if self._plan else None

    def guarantee(self) -> Guarantee:
        """Before `open`, with `auto`, this asks the server."""
        if self._plan is not None:
            return _GUARANTEES[self._plan.delivery]
        if self._settings.delivery is not None:
            return _GUARANTEES[self._settings.delivery]
        with pool.borrow(self._settings.conninfo("doctor"), f"sink {self.name!r}, probing the server") as connection:
            slots_max, _ = plans.slots(connection)
            found = target.find(connection, self._settings.table)
        return _GUARANTEES[plans.choose(None, slots_max, found)[0]]

    def store_url(self) -> str | None:
        return pool.store_url(self._settings.url, self._settings.role)

    def recover(self, pipeline: str) -> Committer:
        with pool.borrow(self._settings.conninfo(pipeline), self._doing(pipeline, "creating the ledger")) as connection:
            self._settings.bookkeeping(pipeline).create(connection)
        return PostgresCommitter(self._settings, pipeline, None)

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        settings, books = self._settings, self._settings.bookkeeping(pipeline)
        with pool.borrow(settings.conninfo(pipeline), self._doing(pipeline, "opening")) as connection:
            with connection.transaction():
                connection.execute(pool.transaction_settings(settings.lock_timeout_s))
                books.create(connection)
                plan = self._resolve(connection, books, schema)
            self._plan = plan
        committer = PostgresCommitter(settings, pipeline, plan)
        committer.ledger()  # from here on it notices a server that is an older copy
        return committer

    def _resolve(self, connection: pool.Connection, books: Bookkeeping, schema: pa.Schema) -> Plan:
        settings = self._settings
        slots_max, slots_used = plans.slots(connection)
        found = target.find(connection, settings.table)
        delivery, reason = plans.choose(settings.delivery, slots_max, found)
        if found is None:
            target.create(connection, settings.table, schema)
            found = target.find(connection, settings.table)
            assert found is not None, settings.table
        columns = target.columns_of(found, schema)
        stage = plans.stage_of(settings, books.pipeline)
        writers_max = None
        if delivery is Delivery.TWO_PHASE:
            free = slots_max - slots_used
            writers_max = max(1, free - 1 if free > 4 else free)  # one is left for somebody else's
        elif delivery is Delivery.STAGED:
            staging.create(connection, books, stage, columns)
        return Plan(books.pipeline, delivery, reason, found.table.sql, columns, stage, writers_max)

    def writers_max(self) -> int | None:
        return self._plan.writers_max if self._plan else None

    def writer(self, task: TaskId) -> SinkWriter:
        if self._plan is None:
            raise ConfigError(f"sink {self.name!r} was not opened: the driver calls open() before any writer runs")
        return PostgresWriter(self._settings, self._plan, task)

    def _doing(self, pipeline: str, what: str) -> str:
        return f"sink {self.name!r} of pipeline {pipeline!r}, {what}"


_DURABLE = "the server keeps what it acknowledged (fsync on; no promotion of an asynchronous replica)"
_GUARANTEES = {
    Delivery.TWO_PHASE: Guarantee(
        "two_phase",
        SinkKind.TWO_PHASE,
        False,
        (_DURABLE, "readers see an epoch task by task, each task's rows at once"),
    ),
    Delivery.STAGED: Guarantee(
        "staged", SinkKind.LAST_RESOURCE, True, (_DURABLE, "the checkpoint store lives in the same database")
    ),
    Delivery.AT_LEAST_ONCE: Guarantee(
        "at_least_once",
        SinkKind.TWO_PHASE,
        False,
        ("NO protection: every task commits for itself, a retry or replay doubles rows, and abort undoes nothing",),
    ),
}
