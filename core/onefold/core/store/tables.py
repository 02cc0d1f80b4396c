"""The checkpoint store's tables, and how an older store's become today's.

A store is migrated by the first driver of a newer onefold that opens it, while an older one may still run on beside it:
so a migration only adds, and what it adds may be left out of an INSERT. The older one refuses its own next start.
"""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onefold.core.errors import ConfigError
from onefold.core.sql.creating import creating
from onefold.core.sql.mariadb_trust import MARIADB_OPTIONS
from onefold.core.sql.postgres_schema import check_tables, own_schema, prefix, refuse_older

__all__ = [
    "SCHEMA_VERSION",
    "LongText",
    "epochs",
    "existing_store",
    "is_older_store",
    "journals",
    "making_store",
    "metadata",
    "pins",
    "pipelines",
    "prepared_store",
    "ready_store",
    "runs",
]

# The columns that bring a store from the version before to this one: table, name, and type in SQL that all databases
# know; `{text}` is the type of `LongText`.
MIGRATIONS = {
    2: (("onefold_epochs", "write_through", "TEXT NOT NULL DEFAULT '[]'"),),
    3: (),  # the table of pins has another name: `prepared_store` renames it
    4: (("onefold_pipelines", "origin", "{text}"), ("onefold_pipelines", "moved", "BIGINT NOT NULL DEFAULT 0")),
    5: (),  # the table of journals is new
}
SCHEMA_VERSION = max(MIGRATIONS)
PINS_BEFORE = "onefold_settled"  # up to version 2
LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")  # TEXT ends at 64 KB there
metadata = sa.MetaData()

store_info = sa.Table(
    "onefold_store",
    metadata,
    sa.Column("store_id", sa.String(36), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    **MARIADB_OPTIONS,
)

pipelines = sa.Table(
    "onefold_pipelines",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("token", sa.String(32), nullable=False),
    sa.Column("frozen", LongText),  # positions, JSON
    sa.Column("origin", LongText),  # the same: where a new checkpoint begins, if somebody has moved that
    sa.Column("moved", sa.BigInteger, nullable=False, server_default="0"),  # the last epoch that moved the positions
    **MARIADB_OPTIONS,
)

epochs = sa.Table(
    "onefold_epochs",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("range_start", LongText, nullable=False),
    sa.Column("range_end", LongText, nullable=False),
    sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
    sa.Column("query_id", LongText, nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("fingerprint", LongText, nullable=False),
    sa.Column("sinks", LongText, nullable=False),
    sa.Column("write_through", LongText, nullable=False),
    sa.Column("manifest", LongText, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("opened_at_ms", sa.BigInteger),
    sa.Column("decided_at_ms", sa.BigInteger),
    sa.Column("completed_at_ms", sa.BigInteger),
    sa.Column("error", LongText),
    sa.Index("onefold_epochs_by_state", "pipeline", "state"),
    **MARIADB_OPTIONS,
)

runs = sa.Table(
    "onefold_runs",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("run", sa.String(200), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("decided_at_ms", sa.BigInteger, nullable=False),
    **MARIADB_OPTIONS,
)

pins = sa.Table(
    "onefold_pins",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("value", LongText, nullable=False),
    **MARIADB_OPTIONS,
)

journals = sa.Table(
    "onefold_journals",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("source", sa.String(200), primary_key=True),
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("value", LongText, nullable=False),
    **MARIADB_OPTIONS,
)


_NAMES = (*metadata.tables, PINS_BEFORE)


def prepared_store(connection: sa.Connection, where: str) -> str:
    """The id of the store at `where`, whose tables are today's after the caller's transaction, which keeps others out
    that do the same. Raises ConfigError."""
    inspector, schema = sa.inspect(connection), own_schema(connection)
    if not inspector.has_table(store_info.name, schema):
        refuse_older(connection, _NAMES)
    if _has_pins_before(inspector, schema):
        connection.exec_driver_sql(_rename_pins(connection))
    metadata.create_all(connection)
    check_tables(connection, _NAMES)
    row = connection.execute(sa.select(store_info)).one_or_none()
    if row is None:
        store_id = str(uuid.uuid4())
        connection.execute(store_info.insert().values(store_id=store_id, version=SCHEMA_VERSION))
        return store_id
    _refuse_newer(row.version, where)
    if row.version < SCHEMA_VERSION:
        for statement in _climbing(connection, row.version):
            connection.exec_driver_sql(statement)
        connection.execute(store_info.update().values(version=SCHEMA_VERSION))
    return str(row.store_id)


def making_store(connection: sa.Connection) -> list[str]:
    """The statements by which `prepared_store` would make what is missing, and migrate what is older."""
    inspector, schema = sa.inspect(connection), own_schema(connection)
    renamed = _has_pins_before(inspector, schema)
    there = {pins.name} if renamed else set()
    there.update(name for name in metadata.tables if inspector.has_table(name, schema))
    missing = [table for table in metadata.sorted_tables if table.name not in there]
    row = connection.execute(sa.select(store_info)).one_or_none() if store_info.name in there else None
    altered = [*([_rename_pins(connection)] if renamed else []), *(_climbing(connection, row.version) if row else [])]
    return [*creating(connection.dialect, missing, schema), *(text.replace("%%", "%") for text in altered)]


def _has_pins_before(inspector: sa.Inspector, schema: str | None) -> bool:
    return inspector.has_table(PINS_BEFORE, schema) and not inspector.has_table(pins.name, schema)


def _rename_pins(connection: sa.Connection) -> str:
    return f"ALTER TABLE {prefix(connection)}{PINS_BEFORE} RENAME TO {pins.name}"


def _climbing(connection: sa.Connection, version: int) -> list[str]:
    """The migrations from that version on. MariaDB commits each by itself: after a crash some columns are there."""
    columns = [column for step in range(version + 1, SCHEMA_VERSION + 1) for column in MIGRATIONS[step]]
    inspector, schema = sa.inspect(connection), own_schema(connection)
    text = LongText.compile(dialect=connection.dialect)
    return [
        f"ALTER TABLE {prefix(connection)}{table} ADD COLUMN {name} {kind.format(text=text)}"
        for table, name, kind in columns
        if name not in {column["name"] for column in inspector.get_columns(table, schema)}
    ]


def ready_store(connection: sa.Connection, where: str) -> str | None:
    """The id of a store that has today's tables, None if there is none; changes nothing. Raises ConfigError."""
    check_tables(connection, _NAMES)
    inspector, schema = sa.inspect(connection), own_schema(connection)
    if not all(inspector.has_table(name, schema) for name in metadata.tables):
        return None
    row = connection.execute(sa.select(store_info)).one_or_none()
    if row is None or row.version < SCHEMA_VERSION:
        return None
    _refuse_newer(row.version, where)
    return str(row.store_id)


def is_older_store(connection: sa.Connection) -> bool:
    """Whether there is a store, where `ready_store` has found none of today's version. Raises ConfigError for one in an
    older onefold's place."""
    is_there = sa.inspect(connection).has_table(store_info.name, own_schema(connection))
    if not is_there:
        refuse_older(connection, _NAMES)
    return is_there


def existing_store(connection: sa.Connection, where: str) -> str | None:
    """The id of a store that is there, None if there is none; changes nothing. Raises ConfigError for an older one."""
    check_tables(connection, _NAMES, to_look=True)
    if not sa.inspect(connection).has_table(store_info.name, own_schema(connection)):
        refuse_older(connection, _NAMES)
        return None
    row = connection.execute(sa.select(store_info)).one_or_none()
    if row is None:
        return None
    _refuse_newer(row.version, where)
    if row.version < SCHEMA_VERSION:
        raise ConfigError(
            "store-too-old",
            f"the checkpoint store at {where} has the older version {row.version}: start one of its pipelines with this"
            " onefold, which migrates it, or look with the onefold that made it",
        )
    return str(row.store_id)


def _refuse_newer(version: int, where: str) -> None:
    if version > SCHEMA_VERSION:
        raise ConfigError(
            "store-too-new",
            f"the checkpoint store at {where} has version {version}, this onefold knows version {SCHEMA_VERSION}: use"
            " the onefold that made it, or a newer one",
        )
