"""What is read: the table or query as SQL, its kind, and its columns' types as the server describes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from onefold.clients.postgres import trust
from onefold.clients.postgres.quoting import quoted
from onefold.clients.postgres.sessions import Connection
from onefold.core.errors import ConfigError
from onefold.sources.postgres.postgres_types import ResultType
from onefold.sources.postgres.source_options import PostgresSourceConfig


@dataclass(frozen=True, slots=True)
class TableRelation:
    """`text` stands after FROM; `oid` and `kind` (pg_class.relkind) are None for a query. `path` is the search_path
    under which it was found, and is read."""

    text: str
    oid: int | None
    kind: str | None
    columns: tuple[tuple[str, ResultType], ...]
    path: str


_PART = r'"(?:[^"]|"")+"|[^."]+'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_FIND = """
SELECT c.oid, c.relkind, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)
"""
_NAMES = """
SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# Vectors of system catalogues look like arrays, and ADBC does not know them.
_TYPES = """
SELECT t.typname, given.typmod, e.typname, coalesce(e.typtype, t.typtype) = 'b', format_type(t.oid, given.typmod)
FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS given (oid, typmod, number)
JOIN pg_type t ON t.oid = given.oid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' AND t.typname NOT IN ('int2vector', 'oidvector')
ORDER BY number
"""
_READABLE = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}


def find(connection: Connection, source: PostgresSourceConfig) -> TableRelation:
    """Look the source up and lock it (ACCESS SHARE, with all partitions) until the transaction's end.

    A snapshot that is taken after this sees what is read later: nobody can truncate, drop or rewrite it meanwhile.
    From here on the transaction has a path of schemas in which nobody else can create anything. Raises ConfigError.
    """
    path, left_out = trust.take_safe_path(connection)
    if left_out and (source.query or source.where):
        raise ConfigError(
            "schema-not-trusted",
            f"{source.name}: its {'query' if source.query else 'where'} would look names up in schema {left_out[0]!r},"
            " where others may create functions and operators that then run as this role. REVOKE CREATE ON SCHEMA"
            f" {quoted(left_out[0])} FROM them (PUBLIC has none since Postgres 15), or leave it out of the path:"
            " ALTER ROLE ... SET search_path = ..., with names from elsewhere written with their schema",
        )
    oid, kind, names = None, None, None
    if source.table is None:
        text = f"({(source.query or '').strip().rstrip(';')}\n) AS onefold_query"
    else:
        oid, kind, text = _table(connection, source.table, left_out)
        names = [name for (name,) in connection.execute(_NAMES, (oid,))]
        _known(source, [*(source.columns or ()), *([source.split_by] if source.split_by else [])], names)
    wanted = source.columns or names
    selected = ", ".join(quoted(name) for name in wanted) if wanted is not None else "*"
    described = connection.execute(f"SELECT {selected} FROM {text} LIMIT 0".encode()).pgresult
    assert described is not None
    if source.where:
        connection.execute(f"SELECT 1 FROM {text} WHERE ({source.where}\n) LIMIT 0".encode())
    columns = _columns(connection, described)
    if not columns or len({name for name, _ in columns}) != len(columns):
        raise ConfigError(
            "columns-not-distinct",
            f"{source.name} must have at least one column, and each name once; it has "
            f"{', '.join(name for name, _ in columns) or 'none'}",
        )
    return TableRelation(text, oid, kind, columns, path)


def _table(connection: Connection, given: str, left_out: Sequence[str]) -> tuple[int, str, str]:
    match = _TABLE.fullmatch(given)
    if match is None:
        raise ConfigError(
            "option-value", f"table={given!r} must be a table's name or schema.table; quote names that hold a dot"
        )
    name = ".".join(quoted(_unquoted(part)) for part in match.groups() if part is not None)
    row = connection.execute(_FIND, (name,)).fetchone()
    if row is None:
        elsewhere = f", and name its schema: {', '.join(left_out)} is not looked into, where others may create"
        raise ConfigError(
            "table-missing",
            f"there is no table {given} in that database: check its name and the URL{elsewhere if left_out else ''}",
        )
    oid, kind, schema, table = row
    if kind not in _READABLE:
        raise ConfigError("table-kind", f"{given} is no table or view (pg_class.relkind {kind!r})")
    return oid, kind, f"{quoted(schema)}.{quoted(table)}"


def _known(source: PostgresSourceConfig, wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            near = [other for other in names if other.casefold() == name.casefold()]
            hint = f"; it has {near[0]!r}: case matters" if near else f"; it has {', '.join(names) or 'no columns'}"
            raise ConfigError("no-such-column", f"{source.name} has no column {name!r}{hint}")


def _columns(connection: Connection, described: psycopg.pq.abc.PGresult) -> tuple[tuple[str, ResultType], ...]:
    columns = range(described.nfields)
    names = [(described.fname(i) or b"").decode() for i in columns]
    # Of a domain, the server names its base type here.
    given = [described.ftype(i) for i in columns], [described.fmod(i) for i in columns]
    types = [ResultType(*row) for row in connection.execute(_TYPES, given)]
    return tuple(zip(names, types, strict=True))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part[0] == '"' else part
