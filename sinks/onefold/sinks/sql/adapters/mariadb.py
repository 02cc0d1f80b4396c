"""MariaDB, and MySQL where it behaves the same, through PyMySQL."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onefold.clients.sql.mariadb_trust import MARIADB_OPTIONS, check_rights
from onefold.core.errors import ConfigError
from onefold.core.findings import Finding, Level
from onefold.core.invariants import NoLoss
from onefold.sinks.sql.adapters.adapter import Adapter, SqlType, as_text, driver_of, each_column, has_room, quoted
from onefold.sinks.sql.adapters.sql_kinds import SqlFamily, SqlKind

KEY_BYTES_MAX = 3072  # of an InnoDB index
_TEXT_KEY_MAX, _UTF8MB4_BYTES = 255, 4
STATEMENT_BYTES = 1_000_000
_LOCK_WAIT_TIMEOUT = 1205
_BITS = {mysql.TINYINT: 8, mysql.SMALLINT: 16, mysql.MEDIUMINT: 24, mysql.INTEGER: 32, mysql.BIGINT: 64}
_BINARY = (sa.VARBINARY, sa.BLOB, mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB)
_NULL = pa.scalar(b"NULL")


class MariaDbAdapter(Adapter):
    conditions = (
        "the server keeps what it acknowledged (innodb_flush_log_at_trx_commit=1; no promotion of an asynchronous "
        "replica)",
    )
    stage_options = MARIADB_OPTIONS

    def __init__(self, is_mariadb: bool) -> None:
        # Other collations take texts for equal that differ in case, accents, or blanks at their ends.
        self._exact = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        self._is_mariadb = is_mariadb

    def column_type(self, kind: SqlKind, keys: int = 0) -> SqlType:
        match kind.family:
            case SqlFamily.BOOLEAN:
                return sa.Boolean()
            case SqlFamily.INTEGER:
                return {16: mysql.SMALLINT(), 32: mysql.INTEGER(), 64: mysql.BIGINT()}[kind.bits]
            case SqlFamily.FLOAT:
                return mysql.DOUBLE()  # FLOAT is read back with six digits
            case SqlFamily.DECIMAL:
                return sa.Numeric(kind.precision, kind.scale)
            case SqlFamily.BINARY:
                return mysql.VARBINARY(self._key_length(keys)) if keys else mysql.LONGBLOB()
            case SqlFamily.DATE:
                return sa.Date()
            case SqlFamily.TIME:
                return mysql.TIME(fsp=6)
            case SqlFamily.LOCAL | SqlFamily.INSTANT:
                return mysql.DATETIME(fsp=6)  # TIMESTAMP ends in 2038
            case SqlFamily.TEXT | SqlFamily.NULL:
                if keys:
                    return mysql.VARCHAR(self._key_length(keys), charset="utf8mb4", collation=self._exact)
                return mysql.LONGTEXT(charset="utf8mb4", collation=self._exact)

    def _key_length(self, keys: int) -> int:
        return min(_TEXT_KEY_MAX, KEY_BYTES_MAX // _UTF8MB4_BYTES // keys)

    def stage_type(self, kind: SqlKind, there: SqlType, keys: int) -> SqlType:
        return there if keys and kind.family is SqlFamily.BINARY else super().stage_type(kind, there, keys)

    def takes(self, kind: SqlKind, there: SqlType) -> bool:
        match kind.family:
            case SqlFamily.BOOLEAN:
                return isinstance(there, (sa.Boolean, mysql.TINYINT))
            case SqlFamily.TIME | SqlFamily.LOCAL | SqlFamily.INSTANT if getattr(there, "fsp", 6) != 6:
                return False  # it would round
            case SqlFamily.LOCAL:
                return isinstance(there, sa.DateTime) and not isinstance(there, sa.TIMESTAMP)
            case SqlFamily.INSTANT:
                return isinstance(there, sa.DateTime)
            case SqlFamily.TEXT if isinstance(there, mysql.SET):
                return False
            case SqlFamily.BINARY:
                return isinstance(there, _BINARY)
            case SqlFamily.DECIMAL | SqlFamily.INTEGER if has_room(there, kind.precision, kind.scale):
                return not getattr(there, "unsigned", False)
        return super().takes(kind, there)

    def stored(self, column: sa.ColumnClause[Any], kind: SqlKind) -> sa.ColumnElement[Any]:
        if kind.family is SqlFamily.FLOAT:  # else FLOAT has six digits, and SQLAlchemy makes a decimal of ten
            return sa.cast(column, mysql.DOUBLE(asdecimal=False))
        return super().stored(column, kind)

    def integer_bits(self, there: SqlType) -> int:
        if getattr(there, "unsigned", False):
            return 0
        return next((bits for kind, bits in _BITS.items() if isinstance(there, kind)), 0)

    def float_bits(self, there: SqlType) -> int:
        if getattr(there, "unsigned", False) or getattr(there, "scale", None) is not None:
            return 0  # DOUBLE(10, 2) rounds
        return 64 if isinstance(there, mysql.DOUBLE) else 32 if isinstance(there, mysql.FLOAT) else 0

    def unusable(self, names: Iterable[str]) -> list[str]:
        """SQLAlchemy reads a backtick as two."""
        return [name for name in names if "`" in name]

    def examine(self, connection: sa.Connection) -> Iterator[Finding]:
        row = connection.exec_driver_sql("SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin")
        version, flush, binlog, has_binlog = row.one()
        if flush == 1:
            yield Finding(Level.FINE, f"{version}: innodb_flush_log_at_trx_commit is 1, each commit is on the disk")
        else:
            yield Finding(
                Level.PROBLEM,
                f"innodb_flush_log_at_trx_commit is {flush}: a crash of the server's machine may take back what was"
                " acknowledged. SET GLOBAL innodb_flush_log_at_trx_commit = 1",
                (NoLoss.name,),
            )
        if has_binlog and binlog != 1:
            yield Finding(
                Level.CAUTION,
                f"sync_binlog is {binlog}: after a crash a replica may have what this server has not, or the other way"
                " round. SET GLOBAL sync_binlog = 1, and promote no replica that lags",
            )

    def check_target(self, connection: sa.Connection, table: sa.TableClause) -> None:
        query = sa.text(
            "SELECT engine FROM information_schema.tables "
            "WHERE table_schema = coalesce(:schema, DATABASE()) AND table_name = :name"
        )
        engine = connection.scalar(query, {"schema": table.schema, "name": table.name})
        if engine != "InnoDB":
            raise ConfigError(
                "table-without-transactions",
                f"table {table.fullname} is kept by {engine}, which has no transactions like InnoDB's: "
                f"ALTER TABLE {table.fullname} ENGINE = InnoDB",
            )

    def check_rights(self, connection: sa.Connection, table: sa.TableClause, verbs: Sequence[str]) -> None:
        check_rights(driver_of(connection), *quoted(connection, table), verbs)

    def collations(self, connection: sa.Connection, table: sa.TableClause) -> dict[str, str]:
        """Of every text column: SHOW CREATE TABLE, by which the inspector goes, leaves the table's own default out."""
        query = sa.text(
            "SELECT column_name AS name, collation_name AS collation FROM information_schema.columns "
            "WHERE table_schema = coalesce(:schema, DATABASE()) AND table_name = :name AND collation_name IS NOT NULL"
        )
        found = connection.execute(query, {"schema": table.schema, "name": table.name})
        return {row.name: row.collation for row in found}

    def drop(self, connection: sa.Connection, table: str) -> bool:
        if not self._is_mariadb:  # MySQL would wait for whoever has rows in it
            return False
        try:
            connection.exec_driver_sql(f"DROP TABLE `{table}` NOWAIT")
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "args", (0,))[0] != _LOCK_WAIT_TIMEOUT:
                raise
            return False
        return True

    def load(self, connection: sa.Connection, stage: sa.TableClause, batch: pa.RecordBatch) -> None:
        """As INSERT statements of many rows, whose literals are written a column at a time.

        LOAD DATA LOCAL would be faster, but it turns errors into warnings, many servers forbid it, and a client that
        allows it sends any file that the server asks for.
        """
        table, columns = quoted(connection, stage)
        literals = each_column(batch, _literals)
        between = [pa.scalar(b",")] * len(literals)
        joined = [part for pair in zip(between, literals, strict=True) for part in pair][1:]
        rows = pc.binary_join_element_wise(pa.scalar(b",("), *joined, pa.scalar(b")"), pa.scalar(b""))
        head = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ".encode()
        packet_bytes = int(connection.scalar(sa.text("SELECT @@max_allowed_packet")) or 0)
        with driver_of(connection).cursor() as cursor:
            for some in _chunks(rows, min(STATEMENT_BYTES, packet_bytes // 2)):
                if len(head) + len(some) > packet_bytes:
                    raise ValueError(f"a row of {len(some)} bytes, and max_allowed_packet is {packet_bytes}")
                cursor.execute(head + some)


def _literals(values: Any) -> Any:
    """A column as SQL literals. Everything but null is quoted: numbers are read from text exactly, -0.0 too."""
    kind = values.type
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(values)).as_py():
        raise ValueError("a number that is not finite (NaN or infinity)")
    is_binary = pa.types.is_binary(kind)
    escaped = values if is_binary else as_text(values).cast(pa.binary())
    if is_binary or pa.types.is_string(kind):
        escaped = pc.replace_substring(pc.replace_substring(escaped, b"\\", b"\\\\"), b"'", b"''")
    begin = pa.scalar(b"_binary'" if is_binary else b"'")
    return pc.fill_null(pc.binary_join_element_wise(begin, escaped, pa.scalar(b"'"), pa.scalar(b"")), _NULL)


def _chunks(rows: Any, bytes_max: int) -> Any:
    """Runs of `,(...)` of at most `bytes_max` bytes, but of one row at least, without the first comma."""
    _, offsets_buffer, data = rows.buffers()
    offsets = memoryview(offsets_buffer).cast("i")[rows.offset : rows.offset + len(rows) + 1]
    text = memoryview(data)
    first = 0
    while first < len(rows):
        last = max(first + 1, bisect_right(offsets, offsets[first] + bytes_max) - 1)
        yield bytes(text[offsets[first] + 1 : offsets[last]])
        first = last
