"""Rows that Postgres refuses: found, so that all others can go on, and kept beside the table with why.

A part that failed is split until single rows are left. A dead letter becomes visible with its epoch, exactly once, like
the rows that were taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from onefold.clients.postgres import trust
from onefold.clients.postgres.quoting import identifier, with_parameters
from onefold.clients.postgres.sessions import Connection, create_beside_others
from onefold.clients.postgres.sqlstates import wants_another_row
from onefold.core.errors import ConfigError
from onefold.core.values import json_encoder
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.schema.target import declared

# Rows that only want for another one are no sign that everything is bad: in a tree, most come before their parents.
WANTING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PartRefused:
    """Why a part was refused, and the index of the row that did it, where the server said."""

    reason: str
    sqlstate: str | None = None
    row: int | None = None


class TooManyRefused(Exception):
    """More rows than were to be put up with; `last` is the one that was too many."""

    def __init__(self, last: PartRefused) -> None:
        super().__init__(last.reason)
        self.last = last


class RowRange(Protocol):
    """Some rows, in order."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int) -> Self: ...


P = TypeVar("P", bound=RowRange)


def isolate(
    whole: P, attempt: Callable[[P], PartRefused | None], refused_max: int, join: Callable[[Sequence[P]], P]
) -> tuple[int, list[tuple[P, PartRefused]]]:
    """Have every row attempted, in as large parts as will go; returns how many were taken, and those that were not.

    `attempt` answers None when the part has taken effect, else it must have had none. A row that was refused for want
    of another one that came after it (a foreign key within the table) is attempted again, for as long as that helps.
    Raises TooManyRefused beyond `refused_max` rows.
    """
    taken, refused = _pass(whole, attempt, refused_max)
    more, backwards = len(refused), False
    while refused and more:
        backwards = not backwards  # a chain of rows, each of which wants for the next, goes in at once from its end
        more, refused = _pass(join([row for row, _ in refused]), attempt, refused_max, backwards)
        taken += more
    if len(refused) > refused_max:
        raise TooManyRefused(refused[-1][1])
    return taken, refused


def _pass(
    whole: P, attempt: Callable[[P], PartRefused | None], refused_max: int, backwards: bool = False
) -> tuple[int, list[tuple[P, PartRefused]]]:
    pending: list[P] = [whole]
    refused: list[tuple[P, PartRefused]] = []
    taken = hopeless = 0
    while pending:
        part = pending.pop()
        why = attempt(part)
        if why is None:
            taken += len(part)
        elif len(part) == 1:
            refused.append((part, why))
            hopeless += not wants_another_row(why.sqlstate)
            if hopeless > refused_max or len(refused) > max(refused_max, WANTING_MAX):
                raise TooManyRefused(why)
        else:
            pieces = _split(part, why.row)
            pending += pieces if backwards else reversed(pieces)
    return taken, refused[::-1] if backwards else refused


def _split(part: P, row: int | None) -> Sequence[P]:
    """At the row that the server named, else in halves. Either way every piece is smaller than `part`."""
    size = len(part)
    cuts = [size // 2] if row is None or not 0 <= row < size else [row, row + 1]
    ends = [*(cut for cut in cuts if 0 < cut < size), size]
    return [part.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


_COLUMNS = {
    "pipeline": "text NOT NULL",
    "sink": "text NOT NULL",
    "epoch": "bigint NOT NULL",
    "generation": "bigint NOT NULL",
    "reason": "text NOT NULL",
    "sqlstate": "text",
    "position": "jsonb",
    "row": "jsonb NOT NULL",
    "at": "timestamptz NOT NULL",
}
_LIST = ", ".join(identifier(name) for name in _COLUMNS)


@dataclass(frozen=True, slots=True)
class LetterOrigin:
    """Which epoch of which sink a row belongs to. `timestamp_ms` is the epoch's T."""

    pipeline: str
    sink: str
    epoch: int
    generation: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One row that was refused. `row` and `position` are JSON."""

    reason: str
    sqlstate: str | None
    position: str | None
    row: str


def create(connection: Connection, table: TargetName) -> str:
    """The table, made if it is missing; returns its name in SQL. Raises ConfigError for one of another shape."""
    with connection.transaction():
        if not check(connection, table):
            create_beside_others(connection, "; ".join(creating(table)))
            check(connection, table)  # somebody else's may be there a moment before
    return table.sql


def creating(table: TargetName) -> list[str]:
    """The statements that make the table."""
    columns = ", ".join(f"{identifier(name)} {kind}" for name, kind in _COLUMNS.items())
    return [
        f"CREATE TABLE {table.sql} ({columns})",
        f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL",  # without it, none is deleted from a table that is published
        f"CREATE INDEX ON {table.sql} (pipeline, sink, epoch)",
    ]


def check(connection: Connection, table: TargetName) -> bool:
    """Whether the table is there. Raises ConfigError for one that cannot take the dead letters."""
    there = [name for name, _ in declared(connection, table.sql)]
    if not there:
        if table.schema is None:
            trust.check_path(connection, table.name)
        return False
    trust.check_ours(connection, [table.name], table.schema)
    if missing := [name for name in _COLUMNS if name not in there]:
        raise ConfigError(
            "rejects-table-columns",
            f"table {table} is to take the dead letters, and has no column {', '.join(missing)}: name another as"
            " rejects_table, or a table that does not exist yet, which is then made",
        )
    ((user, may_insert),) = connection.execute(
        "SELECT current_user, bool_and(has_column_privilege(to_regclass(%s), c, 'INSERT')) FROM unnest(%s::text[]) c",
        (table.sql, list(_COLUMNS)),
    )
    if not may_insert:  # else it would be known with the first bad row
        raise ConfigError(
            "table-permission",
            f"role {user!r} may not insert into table {table}, which is to take the dead letters: GRANT INSERT ON"
            f" {table.sql} TO {identifier(user)}",
        )
    return True


def of_batch(batch: pa.RecordBatch, position: Sequence[str], refused: PartRefused) -> list[DeadLetter]:
    """All rows of `batch` as dead letters."""
    positions = _texts(batch.select(list(position))) if position else [None] * batch.num_rows
    return [
        DeadLetter(refused.reason, refused.sqlstate, at, row) for at, row in zip(positions, _texts(batch), strict=True)
    ]


def insert(connection: Connection, table: str, origin: LetterOrigin, letters: Sequence[DeadLetter]) -> None:
    """Write them, inside the caller's transaction."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {with_parameters(table)} ({_LIST}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, {_AT})",
            [(*_of(origin), *_values(letter), origin.timestamp_ms) for letter in letters],
        )


def stage(connection: Connection, books: Bookkeeping, stage: str, attempt: int, letters: Sequence[DeadLetter]) -> None:
    """Keep an attempt's dead letters beside its staged rows; they go where those go."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"""INSERT INTO {books.table("staged_dead")} (stage, attempt, reason, sqlstate, position, "row")
                VALUES (%s, %s, %s, %s, %s, %s)""",
            [(stage, attempt, *_values(letter)) for letter in letters],
        )


def adopt_staged(
    connection: Connection,
    books: Bookkeeping,
    table: str,
    origin: LetterOrigin,
    stage: str,
    attempts: Sequence[int],
    refused_max: int,
) -> int:
    """Make the staged dead letters of these attempts the epoch's own; returns how many they are.

    Raises TooManyRefused beyond `refused_max`: no attempt has more, all of them together may.
    """
    staged = f"{books.table('staged_dead')} WHERE stage = %s AND attempt = ANY(%s)"
    mine = (stage, list(attempts))
    count = connection.execute(
        f"""INSERT INTO {with_parameters(table)} ({_LIST})
            SELECT %s, %s, %s, %s, reason, sqlstate, position, "row", {_AT} FROM {staged}""",
        (*_of(origin), origin.timestamp_ms, *mine),
    ).rowcount
    if count > refused_max:
        (last,) = connection.execute(f"SELECT reason, sqlstate FROM {staged} LIMIT 1", mine)
        raise TooManyRefused(PartRefused(*last))
    return count


def too_many(refused_max: int, error: TooManyRefused) -> str:
    return (
        f"Postgres refuses more than {refused_max} rows, the last one with: {error.last.reason}. Nothing of the epoch "
        "was written. If the rows are right, mend the table; else filter them, or raise rejects_max"
    )


# Postgres has no place for NUL, in jsonb neither: it becomes the six characters that JSON would escape it with.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_AT = "timestamptz 'epoch' + %s * interval '1 millisecond'"


def _texts(batch: pa.RecordBatch) -> list[Any]:
    """Each row as JSON. Bytes that are no UTF-8 in a text, which neither Arrow nor Spark minds, become `\\xff`."""
    rows = json_encoder.objects(batch.schema.names, batch.columns, "quote").cast(pa.binary())
    decoded = (row.decode(errors="surrogateescape") for row in rows.to_pylist())
    return [_NOT_UTF8.sub(lambda byte: rf"\\x{ord(byte[0]) & 0xFF:02x}", row) for row in decoded]


def _of(origin: LetterOrigin) -> tuple[str, str, int, int]:
    return origin.pipeline, origin.sink, origin.epoch, origin.generation


def _values(letter: DeadLetter) -> tuple[str, str | None, str | None, str]:
    position = _without_nul(letter.position) if letter.position is not None else None
    return letter.reason, letter.sqlstate, position, _without_nul(letter.row)


def _without_nul(text: str) -> str:
    return _NUL.sub(r"\1\\\\u0000", text)
