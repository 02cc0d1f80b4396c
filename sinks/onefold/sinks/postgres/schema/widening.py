"""What ALTER TABLE may do to one column: the rows fit afterwards, and every value that is there stays what it is.

Whether Postgres writes the table anew for it is its own rule (ATColumnChangeRequiresRewrite in tablecmds.c, and
numeric_support and its like); the tests compare it with what the server does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from onefold.clients.postgres.quoting import identifier
from onefold.sinks.postgres.schema.type_mapping import (
    SQL_NAMES,
    PostgresType,
    default_type,
    digits_of,
    fit,
    list_element,
    plain,
)

_PRECISION_MAX = 1000  # Postgres's own for numeric(p,s)
_INTEGERS = ("int2", "int4", "int8")
_TIMES = ("timestamp", "timestamptz", "time", "interval")
_SPARK_METADATA = b"SPARK::metadata::json"  # where Spark's Arrow schemas keep a field's metadata
_SPARK_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"  # what varchar(n) leaves behind in it, once it is a string


@dataclass(frozen=True, slots=True)
class Alteration:
    """One clause of an ALTER TABLE, after which the column `name` has the type `sql`. `rewrites` where Postgres writes
    the whole table anew under its lock."""

    clause: str
    name: str
    sql: str
    rewrites: bool = False


def addition(field: pa.Field) -> Alteration | None:
    """A new nullable column for `field`. None where no type of Postgres's is meant by the rows' type."""
    declared = None if pa.types.is_null(field.type) else default_type(field.type)
    if declared is None:
        return None
    return Alteration(f"ADD COLUMN {identifier(field.name)} {declared}", field.name, declared)


def widening(field: pa.Field, there: PostgresType, collation: str | None = None) -> Alteration | None:
    """A wider type for the column `field` names, None where there is none, or where the rows fit already.

    `collation` is the column's own, in SQL: ALTER COLUMN TYPE would put the type's in its place.
    """
    target = _longer(field, there)
    if target is None and fit(field.name, field.type, there) is None:
        target = next((wider for wider in _wider(there, field.type) if fit(field.name, field.type, wider)), None)
    if target is None:
        return None
    kept = f" COLLATE {collation}" if collation is not None else ""
    clause = f"ALTER COLUMN {identifier(field.name)} TYPE {target.sql}{kept}"
    return Alteration(clause, field.name, target.sql, _rewrites(there, target))


def _wider(there: PostgresType, kind: pa.DataType) -> Iterator[PostgresType]:
    """Types that hold every value of `there`, the narrowest first."""
    if there.element is not None:
        inner = list_element(kind)
        if inner is not None:
            for wider in _wider(PostgresType(there.element, there.typmod, None, False, there.element), inner):
                yield PostgresType(f"_{wider.name}", wider.typmod, wider.name, False, f"{wider.sql}[]")
        return
    if there.name in _INTEGERS:
        for name in _INTEGERS[_INTEGERS.index(there.name) + 1 :]:
            yield _named(name)
    if (common := _common_numeric(there, kind)) is not None:
        yield common
    if there.name == "float4":
        yield _named("float8")
    if there.name == "varchar":
        yield _named("text")
    if there.name in _TIMES and there.typmod >= 0:
        yield _named(there.name)
    if there.name == "date":
        # Midnight, in no zone: the same under every setting, and ::date gives it back. timestamptz is not like that.
        yield _named("timestamp")


def _named(name: str) -> PostgresType:
    return PostgresType(name, -1, None, False, SQL_NAMES.get(name, name))


def _common_numeric(there: PostgresType, kind: pa.DataType) -> PostgresType | None:
    """The narrowest numeric(p,s) for what is there and for the rows."""
    folded = plain(kind)
    mine, theirs = there.digits, None if folded is None else digits_of(folded)
    if mine is None or theirs is None:
        return None
    before, after = max(mine[0], theirs[0]), max(mine[1], theirs[1])
    precision = before + after
    if precision > _PRECISION_MAX:
        return _named("numeric")
    return PostgresType(
        "numeric", ((precision << 16) | (after & 0x7FF)) + 4, None, False, f"numeric({precision},{after})"
    )


def _longer(field: pa.Field, there: PostgresType) -> PostgresType | None:
    """varchar(n) for rows that are declared varchar(m), m > n. A plain string leaves the table's own limit alone."""
    if there.name != "varchar" or there.typmod < 4 or plain(field.type) != pa.string():
        return None
    declared = _declared_length(field)
    if declared is None or declared <= there.typmod - 4:
        return None
    return PostgresType("varchar", declared + 4, None, False, f"character varying({declared})")


def _declared_length(field: pa.Field) -> int | None:
    metadata = (field.metadata or {}).get(_SPARK_METADATA)
    declared = json.loads(metadata).get(_SPARK_VARCHAR, "") if metadata else ""
    match = re.fullmatch(r"(?:var)?char\((\d+)\)", declared)
    return int(match[1]) if match else None


def _rewrites(there: PostgresType, wider: PostgresType) -> bool:
    if there.name == "varchar" or there.name == wider.name in _TIMES:
        return False
    if there.name == wider.name == "numeric":
        return wider.digits is not None and there.digits is not None and there.digits[1] != wider.digits[1]
    return True
