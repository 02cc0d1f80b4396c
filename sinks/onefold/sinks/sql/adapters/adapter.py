"""What differs from database to database, in one class for each: types, loading, and the odd statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.schema import DropTable
from sqlalchemy.types import TypeEngine

from onefold.core.findings import Finding
from onefold.sinks.sql.adapters.sql_kinds import SqlFamily, SqlKind

SqlType = TypeEngine[Any]


class Adapter(ABC):
    """One kind of database, as the sink uses it. How it is reached and what its errors mean is `clients.sql`."""

    conditions: ClassVar[tuple[str, ...]]  # under which the guarantee holds
    writers_max: ClassVar[int | None] = None
    holds_back: ClassVar[bool] = False  # rows wait in a file of the task's own until it prepares
    stage_options: ClassVar[dict[str, Any]] = {}  # SQLAlchemy's keywords for a stage's table
    unordered: ClassVar[frozenset[SqlFamily]] = frozenset(
        (SqlFamily.BOOLEAN, SqlFamily.TEXT, SqlFamily.BINARY, SqlFamily.NULL)
    )

    @abstractmethod
    def column_type(self, kind: SqlKind, keys: int = 0) -> SqlType:
        """The type that a new table's column gets; `keys` is how many key columns it is one of, 0 for none."""

    def stage_type(self, kind: SqlKind, there: SqlType, keys: int) -> SqlType:
        """A text key is compared in the stage as the target compares it, so it has the target's type and collation."""
        as_there = kind.family is SqlFamily.NULL or (keys > 0 and kind.family is SqlFamily.TEXT)
        return there if as_there else self.column_type(kind, keys)

    def takes(self, kind: SqlKind, there: SqlType) -> bool:
        """Whether a column of that type holds every value of that kind exactly, or refuses it."""
        match kind.family:
            case SqlFamily.NULL:
                return True
            case SqlFamily.BOOLEAN:
                return isinstance(there, sa.Boolean)
            case SqlFamily.INTEGER:
                return self.integer_bits(there) >= kind.bits or has_room(there, kind.precision, 0)
            case SqlFamily.FLOAT:
                return self.float_bits(there) >= kind.bits
            case SqlFamily.DECIMAL:
                return has_room(there, kind.precision, kind.scale)
            case SqlFamily.TEXT:
                return isinstance(there, sa.String) and not isinstance(there, (sa.Enum, sa.CHAR))
            case SqlFamily.BINARY:
                return isinstance(there, (sa.LargeBinary, sa.VARBINARY))
            case SqlFamily.DATE:
                return isinstance(there, sa.Date)
            case SqlFamily.TIME:
                return isinstance(there, sa.Time)
            case SqlFamily.LOCAL:
                return isinstance(there, sa.DateTime) and not there.timezone
            case SqlFamily.INSTANT:
                return isinstance(there, sa.DateTime) and there.timezone

    def stored(self, column: sa.ColumnClause[Any], kind: SqlKind) -> sa.ColumnElement[Any]:
        """A column of the target as a SELECT returns its values exactly."""
        return sa.type_coerce(column, self.column_type(kind))

    def integer_bits(self, there: SqlType) -> int:
        """How wide an integer column is; 0 for none."""
        if not isinstance(there, sa.Integer):
            return 0
        return 16 if isinstance(there, sa.SmallInteger) else 64 if isinstance(there, sa.BigInteger) else 32

    def float_bits(self, there: SqlType) -> int:
        if not isinstance(there, sa.Float):
            return 0
        return 64 if isinstance(there, (sa.DOUBLE, sa.DOUBLE_PRECISION)) else 32

    def unusable(self, names: Iterable[str]) -> list[str]:
        """Of columns' names, those that are written and read back as another."""
        del names
        return []

    def examine(self, connection: sa.Connection) -> Iterator[Finding]:
        """What the guarantee rests on, as the server is set up."""
        del connection
        return iter(())

    def check_target(self, connection: sa.Connection, table: sa.TableClause) -> None:
        """Raises ConfigError for a table that doesn't keep what it acknowledged."""
        del connection, table

    def check_rights(self, connection: sa.Connection, table: sa.TableClause, verbs: Sequence[str]) -> None:
        """Raises what the database raises where the session lacks one of these rights on the table."""
        del connection, table, verbs

    def collations(self, connection: sa.Connection, table: sa.TableClause) -> dict[str, str]:
        """Of text columns, where SQLAlchemy's inspector doesn't say it and a stage would not have the same."""
        del connection, table
        return {}

    def drop(self, connection: sa.Connection, table: str) -> bool:
        """Drop a table that nobody uses; False where somebody does."""
        connection.execute(DropTable(sa.Table(table, sa.MetaData())))
        return True

    @abstractmethod
    def load(self, connection: sa.Connection, stage: sa.TableClause, batch: pa.RecordBatch) -> None:
        """Put the rows into the stage, in the transaction at hand. The batch's columns are of the kinds' own types.

        Raises ValueError for values that the database cannot hold.
        """

    def deleting(
        self, table: sa.TableClause, key: Sequence[str], source: sa.Subquery, condition: sa.ColumnElement[bool]
    ) -> sa.Delete:
        """Delete the rows of `table` that have a row in `source` of which the condition holds."""
        del key, source
        return sa.delete(table).where(condition)


def driver_of(connection: sa.Connection) -> Any:
    """The driver's own connection."""
    return connection.connection.driver_connection


def has_room(there: SqlType, precision: int, scale: int) -> bool:
    if not isinstance(there, sa.Numeric) or isinstance(there, sa.Float):
        return False
    if there.precision is None:
        return True
    whole = there.precision - (there.scale or 0)
    return (there.scale or 0) >= scale and whole >= precision - scale


def each_column(batch: pa.RecordBatch, encode: Callable[[Any], Any]) -> list[Any]:
    """Every column encoded; a ValueError names the column."""
    encoded = []
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            encoded.append(encode(values))
        except ValueError as error:
            raise ValueError(f"column {name}: {error}") from error
    return encoded


def quoted(connection: sa.Connection, stage: sa.TableClause) -> tuple[str, list[str]]:
    """The names of a table and its columns, for a statement that goes to the driver without parameters."""
    preparer = connection.dialect.identifier_preparer
    names = preparer.format_table(stage), *(preparer.quote(column.name) for column in stage.columns)
    # Where parameters are written with %, SQLAlchemy doubles it, and nobody halves it again here.
    table, *columns = (name.replace("%%", "%") if preparer._double_percents else name for name in names)
    return table, columns


_YEARS = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))


def as_text(values: Any) -> Any:
    """A string array; timestamps in UTC with six digits. Raises ValueError for years outside of 1 to 9999."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_float32(kind):
        values = values.cast(pa.float64())  # with all the digits that a wider column keeps
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        moments = values.cast(pa.timestamp("us"))
        low, high = (pa.scalar(year, pa.timestamp("us")) for year in _YEARS)
        outside = pc.or_(pc.less(moments, low), pc.greater(moments, high))
        if pc.any(outside).as_py():
            raise ValueError("a date before the year 1 or after the year 9999")
        return (moments if pa.types.is_timestamp(kind) else values).cast(pa.string())
    return values.cast(pa.string())
