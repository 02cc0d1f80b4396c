"""PostgresSource: what a user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import psycopg.conninfo
import pyarrow as pa

from onefold.clients.exposure import of_postgres
from onefold.clients.options import options_model
from onefold.core.errors import ConfigError
from onefold.core.source import Keep
from onefold.core.values.ddl import ddl_of, schema_of
from onefold.sources.postgres.connection import conninfo
from onefold.sources.postgres.copy_reader import read
from onefold.sources.postgres.planning import TablePart, describe, hold, plan, resolve
from onefold.sources.postgres.source_options import PostgresSourceConfig
from onefold.sources.table_source import PlannedTable, TableSource


@options_model
@dataclass(frozen=True)
class PostgresSource(PostgresSourceConfig, TableSource):
    """A table, view or query, read once and as a whole.

        PostgresSource("postgresql://localhost/shop", "orders", columns=["id", "amount"], where="amount > 0")

    In a flow it is read in one epoch, at one snapshot: docs/postgres-source.md.

    `table` is written as for a sink (`orders`, `shop.orders`, `"odd.schema".orders`); `query` is a SELECT instead of
    it. `columns` and `where` (an SQL condition) are applied by Postgres.

    It is read in about `splits` parts: ranges of the table's blocks, or with `split_by` ranges of an integer, date or
    timestamp column. A view or query is one part unless there is a `split_by`.

    `snapshot="shared"`: all parts read one snapshot of the database, which `frozen()` holds, for `hold_s` seconds at
    the most (0: without end). `"each"`: every part has its own, so a row that moves meanwhile may come twice or not at
    all. Anything else is the id of a snapshot that somebody holds (pg_export_snapshot).

    `narrowing="refuse"` refuses a given schema that has less room than Postgres's types; `"check"` checks each value.
    `statement_timeout_s` bounds each part (0: no bound), whatever the role's own setting says; `lock_timeout_s` each
    wait for a table's lock. `schema` is a Spark DDL text of what is read, by default Postgres's own columns, of which
    those without a name in such a text (time, interval) are strings. `name` tells sources of one flow apart.
    """

    is_of_one_moment: ClassVar[bool] = True

    @contextmanager
    def frozen(self) -> Iterator[PostgresSource]:
        """The same source at one snapshot, which is held until the block is left.

        While it is held, the table cannot be truncated, dropped or rewritten, and VACUUM keeps all row versions that
        the snapshot sees, in the whole database. Raises `ConfigError`, `Retriable`.
        """
        held = hold(self)
        try:
            yield replace(self, snapshot=held.id)
        finally:
            held.release()

    def resolved(self, keep: Keep) -> PostgresSource:
        """The same source with the table's own columns, where it names none."""
        self._check_flow()
        if self.schema is not None:
            return self
        return replace(self, schema=keep(f"schema of {self.name}"[:100], self._find_schema))

    def arrow_schema(self) -> pa.Schema:
        """The columns of its rows. Raises ConfigError where the schema is open, and for options of no flow."""
        self._check_flow()
        if self.schema is None:
            raise ConfigError(
                "schema-not-resolved",
                f"the source {self.name!r} has no schema yet: `resolved` asks the server for it, or give it one",
            )
        return schema_of(self.schema)

    def parts(self, schema: pa.Schema | None = None) -> list[TablePart]:
        return plan(self, schema_of(self.schema) if schema is None and self.schema else schema)

    def planned(self) -> PlannedTable:
        """The parts at one snapshot of now, which is held."""
        with ExitStack() as stack:
            parts = stack.enter_context(self.frozen()).parts()
            return PlannedTable(parts, stack.pop_all().close)

    def batches(self, part: TablePart) -> Iterator[pa.RecordBatch]:
        return read(part)

    def exposure(self) -> str:
        return of_postgres(psycopg.conninfo.conninfo_to_dict(conninfo(self.url)))

    def _check_flow(self) -> None:
        if self.snapshot != "shared":
            raise ConfigError(
                "option-not-allowed",
                f"the source {self.name!r} has snapshot={self.snapshot!r}: a flow takes a snapshot of its own for each"
                " attempt of the epoch that reads it, for all parts together. Leave snapshot out",
            )

    def _find_schema(self) -> str:
        columns = resolve(self, describe(self), None)
        return ddl_of(pa.schema([(column.name, _named(column.kind)) for column in columns]))


def _named(kind: pa.DataType) -> pa.DataType:
    """The type, or a string where a schema's text has no name for it."""
    if pa.types.is_list(kind):
        return pa.list_(_named(kind.value_type))
    return pa.string() if pa.types.is_time(kind) or pa.types.is_duration(kind) else kind
