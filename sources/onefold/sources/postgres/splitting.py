"""A read as parts: ranges of blocks, or of a column's values, which together are every row once."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from onefold.core.errors import ConfigError
from onefold.sources.postgres.connection import Connection
from onefold.sources.postgres.relation import TableRelation
from onefold.sources.postgres.source_options import PostgresSourceConfig

__all__ = ["Slice", "slices"]

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
