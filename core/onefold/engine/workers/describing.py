"""Describes what an operator of a flow keeps, before it keeps anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import pyarrow as pa

from onefold.core.aggregates import Aggregate
from onefold.core.checks import present
from onefold.core.values.ids import OrderedIds
from onefold.engine.logics.deduplicating import TURNS
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.state.columns.memory_blocks import MemoryBlocks
from onefold.engine.state.columns.slot_table import SlotTable
from onefold.engine.state.handles import TIMERS
from onefold.engine.state.schemas.description import AggregateDescription, OperatorDescription, StateDescription
from onefold.engine.state.state_backend import TIMES, BlockTable, RowTable, StateSpec, Value
from onefold.flow.graph import (
    Aggregating,
    Connecting,
    Deduplicating,
    Graph,
    Joining,
    Node,
    Processing,
    Reducing,
    Windowing,
)
from onefold.flow.processing.declaring import DeclaredKind, StateDeclaration
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.windows import Aligned

__all__ = ["described"]

_AT_MS = pa.schema({"at_ms": pa.int64()})
_BYTES = pa.schema({"bytes": pa.binary()})
_LISTS = (DeclaredKind.OPERATOR_SPLIT, DeclaredKind.OPERATOR_UNION)  # which restore alike


def described(graph: Graph, node: Node) -> OperatorDescription:
    """What a node with state keeps."""
    uid, given = present(node.uid, "operators with state have a uid"), graph.schema(node.inputs[0])
    asked = _Asked()
    settings: dict[str, str] = {}
    aggregates: Sequence[tuple[str, Aggregate]] = ()
    states: Sequence[StateDescription] = ()
    match node.operator:
        case Aggregating(aggregates, key):
            kind = "aggregate"
        case Windowing(windows, key=key, aggregates=aggregates) as of:
            kind, settings = "window", {"windows": str(windows), "times": of.on}
            if of.trigger is not None:
                settings["trigger"] = str(of.trigger)
            if isinstance(windows, Aligned):
                settings["results"] = "retracting" if of.results == "retracting" else "not retracting"
            else:  # one that has come out may go on, and come again
                settings["results"] = "more than once" if of.fires_again else "once"
        case Joining(of, _, (left, right), key=key):
            kind, settings = "join", {"times": f"{left.on} and {right.on}", "pairs": str(of)}
            settings["right key"] = ", ".join(right.key)
        case Reducing(_, key, ttl):
            row = _timed(present(node.schema, "it gives rows"), ttl)
            kind, states = "reduce", [StateDescription("reduced", "value", row)]
        case Processing(_, key, declared, timers):
            kind, settings, states = "process", {"timers": timers}, [*map(_declared, declared), _TIMERS]
        case Connecting(_, key, declared):
            kind, settings, states = "process", {"timers": "processing"}, [*map(_declared, declared), _TIMERS]
        case Deduplicating(OrderedIds(), key):
            kind, settings, states = "deduplicate", {"ids": "ordered"}, [_HIGHEST]
        case Deduplicating(_, key):
            kind, settings, states = "deduplicate", {"ids": "within"}, _within(given.field(key[0]).type)
        case operator:
            raise AssertionError(operator)
    if isinstance(node.operator, Aggregating | Windowing | Joining):
        make_logic(graph, node, {}, asked, 0, 1)
    return OperatorDescription(
        uid,
        kind,
        pa.schema([given.field(name) for name in key]),
        settings,
        tuple(_aggregate(name, each) for name, each in aggregates),
        tuple(each for each in (*states, *asked.found) if each is not None),
    )


def _aggregate(name: str, of: Aggregate) -> AggregateDescription:
    return AggregateDescription(name, of.keeps(), tuple(f"{name}.{part}" for part, _ in of.parts))


def _declared(state: StateDeclaration) -> StateDescription | None:
    """None where it is not to be there any more."""
    if state.kind is DeclaredKind.DELETED:
        return None
    kind = "operator list" if state.kind in _LISTS else state.kind.value
    key = state.key_schema if state.key_schema is not None else pa.schema([])
    return StateDescription(state.name, kind, _timed(_BYTES if state.schema is None else state.schema, state.ttl), key)


def _timed(schema: pa.Schema, ttl: Ttl | None) -> pa.Schema:
    return schema if ttl is None else pa.schema([pa.field(TIMES, pa.int64()), *schema])


_TIMERS = StateDescription(TIMERS, "timers")
_HIGHEST = StateDescription("highest", "map", pa.schema({"number": pa.int64()}), pa.schema({"source": pa.binary()}))


def _within(kind: pa.DataType) -> list[StateDescription]:
    ids = pa.schema({"ids": pa.list_(kind)})
    came = [StateDescription(f"came {turn}", "map", _AT_MS, ids) for turn in range(TURNS)]
    return [StateDescription("seen", "value", _AT_MS), *came]


class _Asked:
    """Implements StateTables: notes what a logic asks for, and has nothing."""

    def __init__(self) -> None:
        self.found: list[StateDescription] = []

    def table(self, spec: StateSpec) -> NoReturn:
        raise AssertionError(f"{spec} has no schema")

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> BlockTable:
        del uid
        self.found.append(StateDescription(name, "blocks", _behind(schema, width)))
        return MemoryBlocks()

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> RowTable:
        del uid
        self.found.append(StateDescription(name, "rows", _behind(schema, width)))
        return SlotTable()

    def operator(self, spec: StateSpec, content: Callable[[], Sequence[Value]]) -> None:
        del content
        if all(each.name != spec.name for each in self.found):
            self.found.append(StateDescription(spec.name, spec.kind.value))

    def earlier(self, spec: StateSpec) -> list[list[Value]]:
        del spec
        return []


def _behind(schema: pa.Schema, width: int) -> pa.Schema:
    return pa.schema([*schema][width:])
