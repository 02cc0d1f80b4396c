"""From a source to the parts that executors read: columns, rows divided, and the snapshot that all parts share."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
from psycopg import sql

from onefold.clients.postgres.sessions import Connection
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sources.postgres.connection import STARTED, begin, conninfo, session, settings, take, translate
from onefold.sources.postgres.postgres_types import Fit, ResultType, SelectedColumn, by_itself, fit
from onefold.sources.postgres.relation import TableRelation, find
from onefold.sources.postgres.source_options import PostgresSourceConfig

_BLOCKS_MIN = 128  # a megabyte: less is not worth a connection


@dataclass(frozen=True, slots=True)
class Slice:
    """Some of a relation's rows. `label` says which, for people."""

    relation: str
    condition: str
    label: str


def slices(connection: Connection, source: PostgresSourceConfig, relation: TableRelation) -> list[list[Slice]]:
    """The parts, each as the slices that it reads in one statement."""
    if source.splits == 1:
        return [[Slice(relation.text, "true", "all rows")]]
    if source.split_by is not None:
        return [[piece] for piece in _by_key(connection, source, relation, source.split_by)]
    return _by_blocks(connection, source, relation)


# Selecting by ctid needs the right to the whole table, not to some columns. A partition is read by its own name, which
# needs the right to that too, and passes by the parent's row security.
_LEAVES = """
SELECT n.nspname, c.relname, c.relkind, coalesce(pg_relation_size(c.oid) / current_setting('block_size')::bigint, 0),
       has_table_privilege(c.oid, 'SELECT') AND (c.oid = %(oid)s OR NOT row_security_active(%(oid)s))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %(oid)s AND c.relkind <> 'p' OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
ORDER BY c.oid
"""


def _by_blocks(connection: Connection, source: PostgresSourceConfig, relation: TableRelation) -> list[list[Slice]]:
    whole = [[Slice(relation.text, "true", "all rows")]]
    if relation.kind not in ("r", "m", "p"):
        return whole
    leaves = connection.execute(_LEAVES, {"oid": relation.oid}).fetchall()
    if not all(may_read for *_, may_read in leaves):
        return whole
    step = max(-(-sum(blocks for *_, blocks, _ in leaves) // source.splits), _BLOCKS_MIN)
    parts: list[list[Slice]] = []
    room = 0
    for schema, name, kind, blocks, _ in leaves:
        leaf = sql.Identifier(schema, name).as_string() if relation.kind == "p" else relation.text
        # The last range is open: rows that came after the size was asked for are the snapshot's, or they are not.
        starts = list(range(0, max(blocks, 1), step)) if kind != "f" else [0]
        for low, high in zip(starts, [*starts[1:], None], strict=True):
            bounds = [f"ctid >= '({low},0)'"] * (low > 0) + ([f"ctid < '({high},0)'"] if high is not None else [])
            label = f"{name}, blocks {low} to {'the end' if high is None else high - 1}"
            size = (high if high is not None else max(blocks, low)) - low
            if not parts or size > room:
                parts.append([])
                room = step
            room -= size
            parts[-1].append(Slice(leaf, " AND ".join(bounds) or "true", label))
    return parts or whole


# To a whole number, and back: what a boundary's literal says exactly is all the same, if both sides say the same.
_KEYS = {
    "int2": ("{}", "{}"),
    "int4": ("{}", "{}"),
    "int8": ("{}", "{}"),
    "date": ("{} - date '1970-01-01'", "date '1970-01-01' + {}"),
    "timestamp": ("extract(epoch FROM {}) * 1000000", "timestamp '1970-01-01' + {} * interval '1 microsecond'"),
    "timestamptz": ("extract(epoch FROM {}) * 1000000", "timestamptz '1970-01-01Z' + {} * interval '1 microsecond'"),
}


def _by_key(connection: Connection, source: PostgresSourceConfig, relation: TableRelation, key: str) -> list[Slice]:
    column = sql.Identifier(key).as_string()
    kind = _type_of(connection, relation, column)
    if kind not in _KEYS:
        raise ConfigError(
            "split-column-type",
            f"split_by={key!r}: {source.name} has it as {kind}, and ranges are made of integers, dates and timestamps. "
            "Name such a column, or leave split_by out",
        )
    to_number, from_number = _KEYS[kind]
    finite = "true" if kind.startswith("int") else f"isfinite({column})"
    where = f"({source.where}\n) AND {finite}" if source.where else finite
    ((low, high),) = connection.execute(
        f"SELECT floor(({to_number.format('low')})::numeric), ceil(({to_number.format('high')})::numeric) FROM "
        f"(SELECT min({column}) AS low, max({column}) AS high FROM {relation.text} WHERE {where}) AS bounds".encode()
    )
    if low is None:
        return [Slice(relation.text, "true", "all rows")]
    low, high = int(low), int(high)
    between = sorted({low + (high - low + 1) * i // source.splits for i in range(1, source.splits)} - {low})
    ends = [from_number.format(f"'{n}'::{'bigint' if kind != 'date' else 'int'}") for n in between]
    # Open at both ends, and null is with the lowest: min and max only say where to cut.
    pieces = []
    for after, before in zip([None, *ends], [*ends, None], strict=True):
        bounds = [f"{column} >= {after}"] * (after is not None) + [f"{column} < {before}"] * (before is not None)
        condition = " AND ".join(bounds) or "true"
        if after is None and bounds:
            condition = f"({condition} OR {column} IS NULL)"
        pieces.append(Slice(relation.text, condition, f"rows with {condition}"))
    return pieces


def _type_of(connection: Connection, relation: TableRelation, column: str) -> str:
    """The key need not be among the columns that are read."""
    described = connection.execute(f"SELECT {column} FROM {relation.text} LIMIT 0".encode()).pgresult
    assert described is not None
    ((name,),) = connection.execute("SELECT typname FROM pg_type WHERE oid = %s", (described.ftype(0),))
    return str(name)


@dataclass(frozen=True)
class TablePart:
    """What one task reads. Pickles."""

    conninfo: str = field(repr=False)  # it may hold a password
    path: str  # search_path
    settings: dict[str, str | None]
    snapshot: str | None  # its id; None: the part's own
    columns: tuple[SelectedColumn, ...]
    query: str
    label: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.kind) for column in self.columns])


Types = tuple[tuple[str, ResultType], ...]


def describe(source: PostgresSourceConfig) -> Types:
    """The names and types of the source's columns. Raises `ConfigError`, `Retriable`."""
    with session(source, f"looking at {source.name}") as connection:
        return find(connection, source).columns


def plan(source: PostgresSourceConfig, schema: pa.Schema | None = None) -> list[TablePart]:
    """The parts, which together are all rows once. With a `schema`: its columns, in its order, as its types.

    Raises `SchemaMismatch`, `ConfigError`, `Retriable`.
    """
    with session(source, f"planning to read {source.name}") as connection:
        relation = find(connection, source)
        columns = resolve(source, relation.columns, schema)
        ours = settings(source, connection)
        return [_part(source, relation.path, ours, columns, pieces) for pieces in slices(connection, source, relation)]


def _part(
    source: PostgresSourceConfig,
    path: str,
    ours: dict[str, str | None],
    columns: tuple[SelectedColumn, ...],
    pieces: list[Slice],
) -> TablePart:
    selected = ", ".join([column.select for column in columns] + list(_dimensions(columns)))
    condition = f" AND ({source.where}\n)" if source.where else ""
    query = " UNION ALL ".join(
        f"SELECT {selected} FROM {piece.relation} WHERE {piece.condition}{condition}" for piece in pieces
    )
    more = f", and {len(pieces) - 1} more" if len(pieces) > 1 else ""
    return TablePart(
        conninfo(source.url),
        path,
        ours,
        source.snapshot if source.snapshot not in ("shared", "each") else None,
        columns,
        query,
        f"reading {source.name} ({pieces[0].label}{more})",
    )


def _dimensions(columns: tuple[SelectedColumn, ...]) -> list[str]:
    """A list has one dimension; an array may have several, whatever its type says, and ADBC runs them together."""
    return [
        f"array_ndims({sql.Identifier(column.name).as_string()})" for column in columns if pa.types.is_list(column.wire)
    ]


def resolve(source: PostgresSourceConfig, types: Types, schema: pa.Schema | None) -> tuple[SelectedColumn, ...]:
    """How each column of `schema` is read. Raises `SchemaMismatch`, with both schemas beside each other."""
    theirs = dict(types)
    if schema is None:
        schema = pa.schema([(name, by_itself(kind)) for name, kind in types])
    enough = Fit.CHECKED if source.narrowing == "check" else Fit.EXACT
    resolved, lines, is_refused = [], [], False
    for wanted in schema:
        there = theirs.get(wanted.name)
        found, column = fit(wanted.name, there, wanted.type) if there is not None else (Fit.NO, None)
        if there is None:
            verdict = "there is no such column"
        elif found is Fit.NO:
            own = by_itself(there)
            verdict = f"can be read as {own}" + ("" if own == pa.string() else ", or as a string")
        elif found < enough:
            verdict = "has values that do not fit; widen it, or narrowing='check' looks at each value"
        else:
            verdict = ""
            assert column is not None
            resolved.append(column)
        is_refused = is_refused or bool(verdict)
        lines.append((wanted.name, there.sql if there else "-", str(wanted.type), verdict))
    if is_refused or not resolved:
        others = [(name, kind.sql, "-", "") for name, kind in types if name not in schema.names]
        raise SchemaMismatch(
            "schema-unsuitable",
            f"{source.name} cannot be read with the schema that was given:" + _beside([*lines, *others]),
        )
    return tuple(resolved)


def _beside(lines: list[tuple[str, str, str, str]]) -> str:
    rows = [("column", "in Postgres", "given", ""), *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "".join(
        "\n  " + "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


@dataclass(frozen=True)
class HeldSnapshot:
    id: str  # what pg_export_snapshot() says, and which server said it: "00000005-00000002-1@1763714000123456"
    connection: Connection

    def release(self) -> None:
        with contextlib.suppress(psycopg.Error):  # whatever is wrong with it, it holds nothing any more
            self.connection.close()


def hold(source: PostgresSourceConfig) -> HeldSnapshot:
    """Lock what the source names, then export a snapshot. Raises `ConfigError`, `Retriable`."""
    connection = take(source)
    try:
        begin(source, connection, idle_in_transaction_session_timeout=str(round(source.hold_s * 1000)))
        # The snapshot is this last statement's, so it is younger than the locks. A repeatable read's would be the
        # first statement's, and would see a table that is truncated before it is locked as empty.
        find(connection, source)
        (row,) = connection.execute(f"SELECT pg_export_snapshot(), ({STARTED})")
        return HeldSnapshot("@".join(row), connection)
    except psycopg.Error as error:
        translated = translate(error, f"taking a snapshot for {source.name}", connection)
        connection.close()
        raise translated from error
    except BaseException:
        connection.close()
        raise
