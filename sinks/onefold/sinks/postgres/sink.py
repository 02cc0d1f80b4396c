"""PostgresSink: what a user names, and what travels to the executors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import psycopg.conninfo
import pyarrow as pa

from onefold.clients.exposure import of_postgres
from onefold.clients.options import constructed_from
from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.store import store_url
from onefold.core.contract import Committer, Guarantee, SinkKind, SinkWriter, TaskId
from onefold.core.findings import Checks, Finding, Held, Target, passed
from onefold.sinks.postgres import guarantee_checks, open_checks
from onefold.sinks.postgres import sink_plan as plans
from onefold.sinks.postgres.committer import PostgresCommitter
from onefold.sinks.postgres.schema import target as targets
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.sink_plan import PostgresPlan
from onefold.sinks.postgres.writer import PostgresWriter
from onefold.sinks.sink_writer import opened
from onefold.sinks.staged.table_sink import TableSink


class PostgresSink(TableSink[PostgresSinkConfig]):
    """Writes rows into a Postgres table: appended, or as versions of the rows that are there.

    `url` is what libpq takes: `postgresql://user:password@host:port/database?sslmode=verify-full`.
    `table` is `orders` or `shop.orders`, in the case that the catalogue has; it is created if it is missing.

    `delivery` is
    - `two_phase`: every task prepares a transaction, the driver commits them; readers see a task's rows at once;
    - `staged`: every task fills a stage, the driver moves an epoch's rows in one transaction, which is also the
      decision; the checkpoint store then has to live in this database (`store_url`);
    - `direct`: as `staged`, and the rows of small tasks, 64 MiB of an epoch at most, go to the driver with what it is
      told of them, and into the table within the decision: one transaction and one write to the disk an epoch. It has
      no place for rows that Postgres refuses;
    - `auto`: `two_phase` if the server and the table allow it and rows are appended, else `staged`;
      `delivery_reason` says why.

    `mode="upsert"` needs `key`, the columns that name a row (the table has a unique index on exactly them), and
    `order`, the columns that say which version is newer, compared from left to right. The newest version of a row
    stays, however late and in whatever order the versions come; of two with an equal order, the one that was there
    first. Neither may be null in a row; an order that is null in the table is older than any. A row whose boolean
    column `delete_when_true` is true, or whose column `delete_when_null` is null, deletes the key's row unless that is
    newer, and keeps older versions out for `deletes_kept_s`. The column of `delete_when_true` is not written.

    `on_error="dead_letter"` puts rows that Postgres refuses (a constraint, a range, NUL in a text) into the table
    `rejects_table`, in the same epoch, with the reason and the columns named as `source_position`; these are written
    into the table only where it has them too. More than `rejects_max` such rows, in an epoch that is staged or in
    a task that is not, stop the pipeline, as the first one does with `on_error="fail"`.

    With `evolve`, `open` alters the table where the rows have new or wider columns: docs/postgres-targets.md.

    `role` is the role that every session works as (SET ROLE): the owner of the tables and of prepared work, whoever
    logs in. The login role must be a member of it.

    The ledger, the checkpoint store and what else onefold keeps here live in the schema `ledger`, created if missing.
    Raises ConfigError for settings that make no sense.
    """

    @constructed_from(PostgresSinkConfig)
    def __init__(self, settings: PostgresSinkConfig) -> None:
        self._settings = settings
        self._plan: PostgresPlan | None = None

    def __repr__(self) -> str:
        delivery = self._plan.delivery.value if self._plan else self._settings.delivery
        return f"PostgresSink(table={self.table!r}, name={self.name!r}, delivery={delivery!r})"

    @property
    def delivery_reason(self) -> str | None:
        """Why the delivery is what it is; None before `open`."""
        return self._plan.reason if self._plan else None

    def guarantee(self) -> Guarantee:
        """Before `open`, with `auto`, this asks the server."""
        if self._plan is not None:
            return self._promise(self._plan.delivery)
        if self._settings.wanted is not None:
            return self._promise(self._settings.wanted)
        with pool.borrow(self._settings.conninfo("doctor"), f"sink {self.name!r}, probing the server") as connection:
            slots_max, _ = plans.slots(connection)
            found = targets.find(connection, self._settings.target)
        return self._promise(plans.choose(None, slots_max, found, self._settings.changes)[0])

    def _promise(self, delivery: Delivery) -> Guarantee:
        promise, changes = _GUARANTEES[delivery], self._settings.changes
        if changes is None:
            return promise
        conditions = (*promise.conditions, *changes.conditions)
        if changes.deletes and delivery is Delivery.TWO_PHASE:
            alone = (
                "no other pipeline writes versions into the table: what is prepared at once, a deletion here and an"
                " older version there, would both take effect"
            )
            conditions = (*conditions, alone)
        return replace(promise, conditions=conditions)

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterator[Finding]:  # noqa: ARG002
        return guarantee_checks.examine(self._settings, pipeline)

    def held(self, pipeline: str) -> list[Held]:
        return guarantee_checks.held(self._settings, pipeline)

    def target_now(self, pipeline: str) -> Target:
        with self._looking(pipeline) as connection:
            return guarantee_checks.target_now(connection, self._settings.target)

    def is_empty(self, pipeline: str) -> bool:
        with self._looking(pipeline) as connection:
            return guarantee_checks.is_empty(connection, self._settings.target)

    def _looking(self, pipeline: str) -> AbstractContextManager[pool.Connection]:
        return pool.borrow(self._settings.conninfo(pipeline), self._doing(pipeline, "looking at the table"))

    def exposure(self) -> str:
        return of_postgres(psycopg.conninfo.conninfo_to_dict(self._settings.conninfo("")))

    def store_url(self) -> str | None:
        return store_url(self._settings.url, self._settings.role, self._settings.ledger)

    def recover(self, pipeline: str) -> Committer:
        with pool.borrow(self._settings.conninfo(pipeline), self._doing(pipeline, "creating the ledger")) as connection:
            self._settings.bookkeeping(pipeline).create(connection)
        return PostgresCommitter(self._settings, pipeline, None)

    def checks(self, pipeline: str, schema: pa.Schema | None) -> Checks[Committer | None]:
        found = yield from self._checks(pipeline, schema, "doctor")
        return PostgresCommitter(self._settings, pipeline, None) if found.has_ledger else None

    def _checks(self, pipeline: str, schema: pa.Schema | None, whose: str) -> Checks[open_checks.TableChecks]:
        doing = self._doing(pipeline, "opening")
        with pool.borrow(self._settings.conninfo(whose), doing) as connection, connection.transaction():
            connection.execute("SET TRANSACTION READ ONLY")
            return (yield from open_checks.checks(connection, self._settings, pipeline, schema))

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        settings = self._settings
        found = passed(self._checks(pipeline, schema, pipeline))
        with pool.borrow(settings.conninfo(pipeline), self._doing(pipeline, "opening")) as connection:
            books = settings.bookkeeping(pipeline)
            (books.register if found.has_ledger else books.create)(connection)
            with connection.transaction(settings.lock_timeout_s):
                plan = open_checks.resolve(connection, settings, pipeline, schema, found)
            self._plan = plan
        committer = PostgresCommitter(settings, pipeline, plan)
        committer.ledger()  # from here on it notices a server that is an older copy
        return committer

    def writers_max(self) -> int | None:
        return self._plan.writers_max if self._plan else None

    def partition_by(self) -> tuple[str, ...]:
        """Two-phase upserts: tasks that prepare the same key's rows wait for each other, so a key goes to one task."""
        delivery = self._settings.wanted if self._plan is None else self._plan.delivery
        is_split = delivery is Delivery.TWO_PHASE
        changes = self._settings.changes
        return changes.key if changes is not None and is_split else ()

    def writer(self, task: TaskId) -> SinkWriter:
        return PostgresWriter(self._settings, opened(self._plan, self.name), task)

    def _doing(self, pipeline: str, what: str) -> str:
        return f"{self._settings.where(pipeline)}, {what}"


_DURABLE = "the server keeps what it acknowledged (fsync on; no promotion of an asynchronous replica)"
_GUARANTEES = {
    Delivery.TWO_PHASE: Guarantee(
        "two_phase",
        SinkKind.TWO_PHASE,
        False,
        (_DURABLE, "readers see an epoch task by task, each task's rows at once"),
    ),
    Delivery.STAGED: Guarantee(
        "staged",
        SinkKind.LAST_RESOURCE,
        True,
        (_DURABLE, "the checkpoint store lives in the same database"),
        two_phase_by="delivery='two_phase'",
    ),
}
_GUARANTEES[Delivery.DIRECT] = replace(_GUARANTEES[Delivery.STAGED], mode="direct")
