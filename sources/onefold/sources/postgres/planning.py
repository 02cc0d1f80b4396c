"""From a source to the parts that executors read: columns, rows divided, and the snapshot that all parts share."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
from psycopg import sql

from onefold.core.errors import SchemaMismatch
from onefold.sources.postgres.connection import STARTED, Connection, begin, conninfo, session, settings, take, translate
from onefold.sources.postgres.postgres_types import Fit, ResultType, SelectedColumn, by_itself, fit
from onefold.sources.postgres.relation import find
from onefold.sources.postgres.source_options import PostgresSourceConfig
from onefold.sources.postgres.splitting import Slice, slices

__all__ = ["HeldSnapshot", "TablePart", "describe", "hold", "plan", "resolve"]


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
