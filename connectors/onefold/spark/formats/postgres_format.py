"""`onefold_postgres`: one name in Spark for reading tables and for writing batches."""

from __future__ import annotations

from onefold.spark.formats.postgres_source import PostgresReads
from onefold.spark.formats.postgres_writes import PostgresWrites

__all__ = ["OnefoldPostgresDataSource"]


class OnefoldPostgresDataSource(PostgresReads, PostgresWrites):
    @classmethod
    def name(cls) -> str:
        return "onefold_postgres"
