"""What `open` checks and makes ready in a SQL database, in the driver, before any writer runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import sqlalchemy as sa

from onefold.core.checks import present
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.core.findings import Checks, Finding, Level, tried
from onefold.sinks.sql import staging, target
from onefold.sinks.sql.adapters.adapter import driver_of
from onefold.sinks.sql.bookkeeping import SqlBookkeeping, metadata
from onefold.sinks.sql.databases import SqlDatabase, adapter_of, creating, database_of, dialect_of
from onefold.sinks.sql.naming import RESERVED, exactly, own_table, unusable
from onefold.sinks.sql.sink_plan import SqlPlan
from onefold.sinks.sql.staging import OwnTables
from onefold.sinks.staged.table_options import SqlSinkConfig


def checks(settings: SqlSinkConfig, pipeline: str, schema: pa.Schema | None) -> Checks[bool]:
    """What `resolve` rests on, with nothing made; the value is whether the ledger is there. Raises ConfigError,
    SchemaMismatch."""
    database = database_of(settings, pipeline)
    if schema is None:
        says = f"the rows are not known here: whether they fit into table {settings.target} is checked at the start"
        yield Finding(Level.UNCHECKED, says)
    if not database.is_there():
        yield from tried(database.check_new)
        makes = creating(dialect_of(database.url), metadata.sorted_tables)
        yield database.making_new(f"{database} is made by the first start", makes)
        yield from _makes(database, None, settings, pipeline, schema, None)
        return False
    with database.connected() as connection:
        driver = driver_of(connection)
        database.backend.check_ours(driver)
        has_ledger = SqlBookkeeping(pipeline, settings.name).check(connection)
        if has_ledger:
            database.backend.check_may_work(driver, ((one.name, one.columns.keys()) for one in metadata.sorted_tables))
        else:
            missing = [one for one in metadata.sorted_tables if not sa.inspect(connection).has_table(one.name)]
            made = [*database.backend.making(driver), *creating(connection.dialect, missing)]
            yield Finding.making(f"the ledger at {database} is made by the first start", str(database), made)
        there = target.find(connection, settings.target)
        if there is not None:
            yield from _fits(connection, settings, pipeline, schema, there)
        yield from _makes(database, connection, settings, pipeline, schema, there)
    if not database.backend.tells_rights and (there is None or not has_ledger):
        yield Finding(Level.UNCHECKED, f"whether the user may create tables at {database} is tried at the start")
    return has_ledger


def _makes(
    database: SqlDatabase,
    connection: sa.Connection | None,
    settings: SqlSinkConfig,
    pipeline: str,
    schema: pa.Schema | None,
    there: Mapping[str, target.There] | None,
) -> Iterator[Finding]:
    """Of the target, and of what the sink keeps beside it, what the first start makes. Raises as `resolve` does.

    `connection` is None where there is no database yet, and `there` where there is no target.
    """
    dialect = dialect_of(database.url) if connection is None else connection.dialect
    says = f"table {settings.target} is made by the first start"
    if schema is None:
        if there is None:
            yield Finding.making(says, str(database), [f"CREATE TABLE {settings.target} (...)"])
        return
    if there is None:
        made = target.new(dialect, settings.target, _written(dialect, settings, schema), settings.key)
        yield Finding.making(says, str(database), creating(dialect, [made]))
        there = target.as_found(made)
    _, own = _planned(dialect, settings, pipeline, schema, there)
    if statements := staging.making(dialect, connection, own):
        yield Finding.making("the stage is made by the first start", str(database), statements)


def _fits(
    connection: sa.Connection,
    settings: SqlSinkConfig,
    pipeline: str,
    schema: pa.Schema | None,
    there: Mapping[str, target.There],
) -> Iterator[Finding]:
    changes = settings.changes
    if changes is not None:
        yield from tried(lambda: target.check_key(connection, settings.target, changes))
    names = [name for name, column in there.items() if not column.get("computed")]
    if schema is not None:
        plan, own = _planned(connection.dialect, settings, pipeline, schema, there)
        names = [column.name for column in plan.columns]
        yield from tried(lambda: staging.check(connection, own))
    verbs = ("INSERT",) if changes is None else ("SELECT", "INSERT", "UPDATE", *(["DELETE"] if changes.deletes else []))
    into = sa.table(
        exactly(settings.target.name), *(sa.column(exactly(name)) for name in names), schema=settings.target.schema
    )
    adapter_of(connection.dialect).check_rights(connection, into, verbs)


def resolve(connection: sa.Connection, settings: SqlSinkConfig, pipeline: str, schema: pa.Schema) -> SqlPlan:
    """Make what is missing, in `SqlDatabase.making_tables`, after the checks. Raises ConfigError, SchemaMismatch."""
    there = target.find(connection, settings.target)
    if there is None:
        target.create(connection, settings.target, _written(connection.dialect, settings, schema), settings.key)
        there = present(target.find(connection, settings.target), f"no table {settings.target} after it was made")
        if settings.changes is not None:
            target.check_key(connection, settings.target, settings.changes)
    return staging.create(connection, *_planned(connection.dialect, settings, pipeline, schema, there))


def _written(dialect: sa.Dialect, settings: SqlSinkConfig, schema: pa.Schema) -> pa.Schema:
    """The columns that go into the table. Raises ConfigError, SchemaMismatch for names that cannot be there."""
    reserved = RESERVED & {*schema.names}
    if reserved:
        raise ConfigError(
            "column-name-taken",
            f"{', '.join(sorted(reserved))}: the sink's own columns have that name; rename the rows'",
        )
    if strange := [*unusable(schema.names), *adapter_of(dialect).unusable(schema.names)]:
        raise SchemaMismatch(
            "column-name-invalid",
            f"the column {strange[0]!r} has no name that a table could have: rename it in the rows",
        )
    folded = [name.casefold() for name in schema.names]
    if alike := [name for name in schema.names if folded.count(name.casefold()) > schema.names.count(name)]:
        raise SchemaMismatch(
            "column-name-invalid",
            f"the columns {' and '.join(map(repr, alike))} differ only in case, and the database takes them for one:"
            " rename one in the rows",
        )
    if settings.changes is None:
        return schema
    names = settings.changes.written(schema.names)
    settings.changes.check(names, schema)
    return pa.schema([field for field in schema if field.name in names])


def _planned(
    dialect: sa.Dialect,
    settings: SqlSinkConfig,
    pipeline: str,
    schema: pa.Schema,
    there: Mapping[str, target.There],
) -> tuple[SqlPlan, OwnTables]:
    """The plan, without the stage's whole name, and the tables that go with it."""
    changes = settings.changes
    order = changes.order if changes is not None else ()
    written = _written(dialect, settings, schema)
    columns = target.columns_of(dialect, settings.target, there, written, order)
    plan = SqlPlan(
        pipeline,
        settings.target,
        columns,
        tuple(schema.names),
        stage=own_table("stage", pipeline, settings.name),
        deleted=own_table("deleted", pipeline, settings.name) if changes is not None and changes.deletes else None,
        changes=changes,
    )
    return plan, staging.own_tables(dialect, plan, there)
