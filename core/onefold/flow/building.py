"""The nodes of a flow while it is being built, and the checks of names that all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.values.names import check_columns
from onefold.flow.evaluation import column_of
from onefold.flow.graph.event_time import check_timed
from onefold.flow.graph.nodes import Edge, Node, Shipping
from onefold.flow.graph.operators import Filtering, Operator, Selecting, Windowing, Writing
from onefold.flow.processing.declaring import as_schema
from onefold.flow.processing.processor import Schema

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OF_ONE_CLOCK = re.compile(r"UTC|GMT|Etc/(UTC|GMT.*)|[+-]\d\d:\d\d")  # zones in which no hour comes twice
_TYPES_OF_KEYS = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
)


class Nodes:
    """Those of one flow, in the order in which they were made: each after its inputs."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        self.made: list[Node] = []

    def add(
        self,
        operator: Operator,
        inputs: Iterable[Edge],
        schema: pa.Schema | None,
        sides: Mapping[str, Schema] | None = None,
        uid: str | None = None,
        queryable: bool = False,
    ) -> Node:
        """Raises ConfigError for a uid that is taken, for a side's schema that is none, where rows are to be chosen
        that have a column of which pyarrow chooses none, and where it goes by event time that sources do not have."""
        if not isinstance(queryable, bool):
            raise ConfigError("option-value", f"{uid}: queryable={queryable!r:.100} is True or False")
        inputs = tuple(inputs)
        for edge in inputs:
            if isinstance(operator, Filtering) or edge.shipping in (Shipping.KEYED, Shipping.REBALANCE):
                _check_choosable(self.schema(edge))
        made = [(name, as_schema(given, f"the side output {name!r}")) for name, given in (sides or {}).items()]
        node = Node(len(self.made), operator, inputs, schema, tuple(made), uid, queryable)
        if uid is not None:
            self._check_uid(uid)
        if node.keeps_event_time and not isinstance(operator, Windowing):
            check_timed(self.made, inputs)
        self.made.append(node)
        return node

    def schema(self, edge: Edge) -> pa.Schema:
        """Of the records on an edge."""
        return self.made[edge.source].outputs()[edge.output]

    def sinks(self) -> list[str]:
        """The names of the sinks so far."""
        return [node.name for node in self.made if isinstance(node.operator, Writing)]

    def _check_uid(self, uid: str) -> None:
        if not _UID.fullmatch(uid):
            raise ConfigError(
                "uid-value",
                f"uid={uid!r} must have 1 to 100 letters, digits, '_', '.' or '-', and begin with a letter or digit",
            )
        if any(node.uid == uid for node in self.made):
            raise ConfigError(
                "uid-twice",
                f"flow {self.flow!r} has two operators with uid={uid!r}, and each keeps its state under its own: rename"
                " one",
            )


def _check_choosable(schema: pa.Schema) -> None:
    """Views and run-end encoded columns, by pyarrow 26."""
    for field in schema:
        try:
            pa.nulls(0, field.type).take(pa.array([], pa.int64()))
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                "column-not-filterable",
                f"column {field.name!r} is of {field.type}, of which pyarrow takes no single rows, so that they can"
                " neither be filtered nor go to other tasks: cast it before, in map_batches or in the source",
            ) from error


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """The last node before a place that did more than to choose rows and columns, and which of its outputs it is.

    `names` are the columns of that output that are still there, and what they are called now.
    """

    node: Node
    output: str | None
    names: dict[str, str]


def origin_of(nodes: Nodes, edge: Edge) -> NodeOrigin:
    """Of the rows on an edge."""
    node = nodes.made[edge.source]
    match node.operator:
        case Filtering():
            return origin_of(nodes, node.inputs[0])
        case Selecting(columns):
            before, now = origin_of(nodes, node.inputs[0]), {column_of(made): name for name, made in columns}
            names = {first: now[then] for first, then in before.names.items() if then in now}
            return NodeOrigin(before.node, before.output, names)
        case _:
            return NodeOrigin(node, edge.output, {name: name for name in nodes.schema(edge).names})


def needs_uid(uid: str | None, what: str) -> str:
    """The uid. Raises ConfigError where none is given."""
    if uid is None:
        raise ConfigError(
            "uid-missing",
            f"{what} has no uid=, the name under which its state is kept and found again when the flow changes: give it"
            " one that stays",
        )
    return uid


def check_key(key: tuple[str, ...], schema: pa.Schema, label: str) -> None:
    """Raise ConfigError for columns that are no key."""
    check_columns(key, schema, label)
    if not key or len(set(key)) != len(key):
        raise ConfigError("option-value", f"{label} names {', '.join(key) or 'no column'}: name one or more, each once")
    for name in key:
        kind = schema.field(name).type
        if not any(is_of(kind) for is_of in _TYPES_OF_KEYS):
            raise ConfigError(
                "key-type",
                f"{label}: the column {name!r} has the type {kind}, which cannot be part of a key: keys are integers,"
                " strings, bytes, decimals, booleans, dates, times and timestamps. Cast it, or choose another key"
                " (floats have values that are equal and differ)",
            )


def check_state_key(key: tuple[str, ...], schema: pa.Schema, label: str) -> None:
    """Raise ConfigError for columns that are no key, and for those whose values differ where Python's are equal, since
    state is kept by these: nanoseconds, and the hour that comes twice in a zone with summer time."""
    check_key(key, schema, label)
    for name in key:
        kind = schema.field(name).type
        is_timestamp = pa.types.is_timestamp(kind)
        has_hour_twice = is_timestamp and kind.tz is not None and not _OF_ONE_CLOCK.fullmatch(kind.tz)
        if has_hour_twice or getattr(kind, "unit", None) == "ns":
            raise ConfigError(
                "key-type",
                f"{label}: the column {name!r} has the type {kind}. Times of nanoseconds, and those of a zone in which"
                " an hour may come twice, may be the same to Python, and would share their state. Cast it to"
                " microseconds, and a timestamp to the zone UTC",
            )
