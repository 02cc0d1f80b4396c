"""What a flow says of joins, checked: by which keys and times, and which columns come out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import get_args

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.values.names import check_columns
from onefold.flow.building import Nodes, needs_uid
from onefold.flow.graph.event_time import check_timed
from onefold.flow.graph.nodes import Edge
from onefold.flow.graph.operators import WINDOW_END, WINDOW_START, Joining
from onefold.flow.time.joins import AsOf, How, JoinSide, Within
from onefold.flow.time.windows import Aligned
from onefold.flow.windowing import rows_time

_SUFFIX = "_right"


def joined(
    nodes: Nodes,
    edges: tuple[Edge, Edge],
    of: Aligned | Within | AsOf,
    text: str,
    how: How,
    uid: str | None,
    columns: Sequence[str] | None = None,
    late: tuple[str | None, str | None] = (None, None),
) -> Edge:
    """The rows of two keyed edges that belong together. `columns` are those that are taken of the second one's rows, by
    default all that are not its key; `late` names side outputs of each one's rows that come too late.

    Raises ConfigError for keys of other types, for rows without a time, and for a column name that comes twice."""
    label = f"join({uid!r})"
    if how not in get_args(How):
        raise ConfigError("option-value", f"{label}: how={how!r:.100} is {' or '.join(get_args(How))}")
    if late[0] is not None and late[0] == late[1]:
        raise ConfigError("option-value", f"{label}: late= and other_late= are both {late[0]!r}: name two side outputs")
    check_timed(nodes.made, edges)
    given, other = (nodes.schema(edge) for edge in edges)
    _check_keys(edges, (given, other), label)
    time, other_time = (rows_time(nodes, edge, None, label) for edge in edges)
    kind = pa.timestamp("us", getattr(given.field(time[0]).type, "tz", None))
    bounds = [pa.field(name, kind, nullable=False) for name in (WINDOW_START, WINDOW_END)]
    key = [given.field(name) for name in edges[0].key]
    before = [*key, *(bounds if isinstance(of, Aligned) else [])]
    own = [(name, name) for name in given.names if name not in edges[0].key]
    taken = _taken(other, edges[1].key, columns, label)
    known = {*(field.name for field in before), *given.names}
    others = [(name, name + _SUFFIX if name in known else name) for name in taken]
    optional = how in ("right", "full"), how in ("left", "full")
    before[: len(key)] = (field.with_nullable(field.nullable or optional[0]) for field in key)
    fields = [*before, *_fields(given, own, optional[0]), *_fields(other, others, optional[1])]
    _check_names([*(field.name for field in fields), *given.names, *other.names], len(fields), label)
    sides = JoinSide(edges[0].key, *time, tuple(own)), JoinSide(edges[1].key, *other_time, tuple(others))
    outputs = {name: schema for name, schema in zip(late, (given, other), strict=True) if name is not None}
    operator = Joining(of, text, sides, how, late)
    return Edge(nodes.add(operator, edges, pa.schema(fields), outputs, needs_uid(uid, "join")).number)


def _taken(schema: pa.Schema, key: Collection[str], columns: Sequence[str] | None, label: str) -> list[str]:
    if columns is None:
        return [name for name in schema.names if name not in key]
    check_columns(columns, schema, label)
    if within := [name for name in columns if name in key]:
        raise ConfigError(
            "option-value", f"{label}: columns= names {within[0]!r}, which is of the key: that comes as the first's"
        )
    return [*columns]


def _fields(schema: pa.Schema, pairs: Iterable[tuple[str, str]], is_optional: bool) -> Iterator[pa.Field]:
    for name, called in pairs:
        field = schema.field(name)
        yield field.with_name(called).with_nullable(field.nullable or is_optional)


def _check_keys(edges: Sequence[Edge], schemas: Sequence[pa.Schema], label: str) -> None:
    of = [
        [f"{name} {schema.field(name).type}" for name in edge.key] for edge, schema in zip(edges, schemas, strict=True)
    ]
    kinds = [[schema.field(name).type for name in edge.key] for edge, schema in zip(edges, schemas, strict=True)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            "join-key-types",
            f"{label}: the keys are {', '.join(of[0])} and {', '.join(of[1])}: let both have the same types in the same"
            " order, as by with_columns(id=pc.field('id').cast(...)) before key_by",
        )


def _check_names(names: Sequence[str], made: int, label: str) -> None:
    """Of the columns, of which `made` come out."""
    twice = [name for at, name in enumerate(names[:made]) if name in names[:at]]
    if bad := twice + [name for name in names if name.startswith("$")]:
        raise ConfigError(
            "column-name-taken",
            f"{label}: {bad[0]!r} would be a column twice, or begins as those do that joins keep. Give it another name"
            " before, with select() or with_columns(), or leave it out by columns=",
        )
