"""The checkpoint store's tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

__all__ = ["MARIADB_OPTIONS", "SCHEMA_VERSION", "LongText", "epochs", "metadata", "pipelines", "store_info"]

SCHEMA_VERSION = 2
LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")  # TEXT ends at 64 KB there
# Transactional, and names that differ in case or accents are different names, whatever the server's defaults are.
MARIADB_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}
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
