"""Postgres, through SQLAlchemy and psycopg. `PostgresSink` knows more of it, and is faster."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from onefold.core.errors import ConfigError
from onefold.sinks.sql.adapters.adapter import Adapter, SqlType, driver_errors, quoted
from onefold.sinks.sql.adapters.kinds import Family, Kind

__all__ = ["PostgresAdapter"]


class PostgresAdapter(Adapter):
    conditions = ("the server keeps what it acknowledged (fsync on; no promotion of an asynchronous replica)",)
    # Crash recovery of the server empties the stage, while the attempts stay listed: so every merge counts.
    stage_options: ClassVar[dict[str, Any]] = {"prefixes": ["UNLOGGED"]}
    stage_has_key = False

    def column_type(self, kind: Kind, keys: int = 0) -> SqlType:
        del keys
        match kind.family:
            case Family.BOOLEAN:
                return sa.Boolean()
            case Family.INTEGER:
                return {16: sa.SmallInteger(), 32: sa.Integer(), 64: sa.BigInteger()}[kind.bits]
            case Family.FLOAT:
                return sa.REAL() if kind.bits == 32 else sa.DOUBLE_PRECISION()
            case Family.DECIMAL:
                return sa.Numeric(kind.precision, kind.scale)
            case Family.BINARY:
                return sa.LargeBinary()
            case Family.DATE:
                return sa.Date()
            case Family.TIME:
                return sa.Time()
            case Family.LOCAL | Family.INSTANT as family:
                return sa.DateTime(timezone=family is Family.INSTANT)
            case Family.TEXT | Family.NULL:
                return sa.Text()

    def takes(self, kind: Kind, there: SqlType) -> bool:
        rounds = getattr(there, "precision", None) not in (None, 6)
        if isinstance(there, (postgresql.TIMESTAMP, postgresql.TIME)) and rounds:
            return False
        return super().takes(kind, there)

    def check_target(self, connection: sa.Connection, table: sa.TableClause) -> None:
        name = _written(connection, table)
        query = sa.text("SELECT relpersistence FROM pg_class WHERE oid = to_regclass(:name)")
        if connection.scalar(query, {"name": name}) != "p":
            raise ConfigError(
                f"table {name} is UNLOGGED or temporary: a crash of the server empties it, and exactly-once with it. "
                f"ALTER TABLE {name} SET LOGGED"
            )

    def collations(self, connection: sa.Connection, table: sa.TableClause) -> dict[str, str]:
        query = sa.text(
            "SELECT a.attname, c.collname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "JOIN pg_collation c ON c.oid = a.attcollation "
            "WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND a.attcollation <> t.typcollation"
        )
        found = connection.execute(query, {"name": _written(connection, table)})
        return {row.attname: row.collname for row in found}

    def load(self, connection: sa.Connection, stage: sa.TableClause, batch: pa.RecordBatch) -> None:
        from pgpq import ArrowToPostgresBinaryEncoder

        table, columns = quoted(connection, stage)
        encoder = ArrowToPostgresBinaryEncoder(batch.schema)
        driver = connection.connection.driver_connection
        assert driver is not None
        statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)".encode()
        with driver_errors(connection), driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(encoder.write_header())
            copy.write(encoder.write_batch(batch))
            copy.write(encoder.finish())


def _written(connection: sa.Connection, table: sa.TableClause) -> str:
    """The table's name, quoted where it must be, as a value. Where parameters are written with %, a % is doubled."""
    return connection.dialect.identifier_preparer.format_table(table).replace("%%", "%")
