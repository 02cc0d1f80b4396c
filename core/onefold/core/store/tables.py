"""The checkpoint store's tables, and how a store is made and found."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onefold.core.errors import ConfigError
from onefold.core.sql.creating import creating
from onefold.core.sql.mariadb_trust import MARIADB_OPTIONS
from onefold.core.sql.postgres_schema import check_tables, own_schema

__all__ = [
    "LongText",
    "epochs",
    "existing_store",
    "journals",
    "making_store",
    "metadata",
    "pins",
    "pipelines",
    "prepared_store",
    "runs",
]

VERSION = 1  # of the tables; a store says by which it was made
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


def prepared_store(connection: sa.Connection, where: str) -> str:
    """The id of the store at `where`, which is made, or the tables that it lacks, in the caller's transaction. That
    keeps others out that do the same. Raises ConfigError."""
    metadata.create_all(connection)
    store_id = existing_store(connection, where)
    if store_id is None:
        store_id = str(uuid.uuid4())
        connection.execute(store_info.insert().values(store_id=store_id, version=VERSION))
    return store_id


def making_store(connection: sa.Connection) -> list[str]:
    """The statements by which `prepared_store` would make what is missing."""
    inspector, schema = sa.inspect(connection), own_schema(connection)
    missing = [table for table in metadata.sorted_tables if not inspector.has_table(table.name, schema)]
    return creating(connection.dialect, missing, schema)


def existing_store(connection: sa.Connection, where: str, *, to_look: bool = False) -> str | None:
    """The id of a store that is there with all its tables, else None; changes nothing. `to_look` asks for no right to
    write. Raises ConfigError for tables that others could change, and for a store of another version."""
    check_tables(connection, tuple(metadata.tables), to_look=to_look)
    inspector, schema = sa.inspect(connection), own_schema(connection)
    if not inspector.has_table(store_info.name, schema):
        return None
    row = connection.execute(sa.select(store_info)).one_or_none()
    if row is not None and row.version != VERSION:
        raise ConfigError(
            "store-too-new",
            f"the checkpoint store at {where} has version {row.version}, this onefold knows version {VERSION}: use the"
            " newer onefold that made it, or another store",
        )
    is_whole = row is not None and all(inspector.has_table(name, schema) for name in metadata.tables)
    return str(row.store_id) if row is not None and is_whole else None
