"""The checkpoint store's tables."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["SCHEMA_VERSION", "epochs", "metadata", "pipelines", "runs", "store_info"]

SCHEMA_VERSION = 2
metadata = sa.MetaData()

store_info = sa.Table(
    "onefold_store",
    metadata,
    sa.Column("store_id", sa.String(36), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)

pipelines = sa.Table(
    "onefold_pipelines",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("token", sa.String(32), nullable=False),
    sa.Column("frozen", sa.Text),  # positions, JSON
)

epochs = sa.Table(
    "onefold_epochs",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("range_start", sa.Text, nullable=False),
    sa.Column("range_end", sa.Text, nullable=False),
    sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
    sa.Column("query_id", sa.Text, nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("sinks", sa.Text, nullable=False),
    sa.Column("write_through", sa.Text, nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("opened_at_ms", sa.BigInteger),
    sa.Column("decided_at_ms", sa.BigInteger),
    sa.Column("completed_at_ms", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Index("onefold_epochs_by_state", "pipeline", "state"),
)

runs = sa.Table(
    "onefold_runs",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("run", sa.String(200), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("decided_at_ms", sa.BigInteger, nullable=False),
)
