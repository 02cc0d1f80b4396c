"""Describes what an operator of a flow keeps, before it keeps anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from onefold.core.aggregates import Aggregate
from onefold.core.checks import present
from onefold.core.values.ids import OrderedIds
from onefold.engine.logics.deduplicating import TURNS
from onefold.engine.logics.event_time import CLOCKS
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.logics.windows.contents import KEY_STATE, stored_columns
from onefold.engine.state.handles import TIMERS
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.schemas.description import AggregateDescription, OperatorDescription, StateDescription
from onefold.engine.state.state_backend import TIMES, StateSpec
from onefold.engine.state.storage import Storage
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import (
    Aggregating,
    Connecting,
    Deduplicating,
    Elements,
    Joining,
    Processing,
    Reducing,
    Windowing,
)
from onefold.flow.processing.declaring import DeclaredKind, StateDeclaration
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.windows import Aligned

_AT_MS, _BYTES = pa.schema({"at_ms": pa.int64()}), pa.schema({"bytes": pa.binary()})
_HIGHEST = StateDescription("highest", "map", pa.schema({"number": pa.int64()}), pa.schema({"source": pa.binary()}))
_TIMERS, _CLOCKS = StateDescription(TIMERS, "timers"), StateDescription(CLOCKS, "clocks")
_LISTS = (DeclaredKind.OPERATOR_SPLIT, DeclaredKind.OPERATOR_UNION)  # which are stored alike


def described(graph: Graph, node: Node) -> OperatorDescription:
    """What a node with state keeps."""
    uid, given = present(node.uid, "operators with state have a uid"), graph.schema(node.inputs[0])
    settings: dict[str, str] = {}
    aggregates: tuple[AggregateDescription, ...] = ()
    states: Iterable[StateDescription] = ()
    match node.operator:
        case Aggregating(made, key):
            kind, aggregates = "aggregate", _aggregates(made)
            states = _asked_for(graph, node)
        case Windowing(windows, key=key, elements=Elements()) as of:
            kind, states = "window", [*_elements(given), *_asked_for(graph, node)]
            settings = _settings(of) | {"rows": "one by one"}
            if of.takes_back:
                settings["results"] = ", ".join(map(str, present(node.schema, "it gives rows")))
        case Windowing(windows, key=key, aggregates=made) as of:
            kind, aggregates, states = "window", _aggregates(made), _asked_for(graph, node)
            settings = _settings(of)
            if isinstance(windows, Aligned):
                settings["results"] = "retracting" if of.results == "retracting" else "not retracting"
            else:  # one that has come out may go on, and come again
                settings["results"] = "more than once" if of.fires_again else "once"
        case Joining(pairs, _, (left, right), key=key):
            kind, states = "join", _asked_for(graph, node)
            settings = {"pairs": str(pairs), "times": f"{left.on} and {right.on}", "right key": ", ".join(right.key)}
        case Reducing(_, key, ttl):
            row = _timed(present(node.schema, "it gives rows"), ttl)
            kind, states = "reduce", [StateDescription("reduced", "value", row)]
        case Processing(_, key, declared) | Connecting(_, key, declared):
            clocks = [_CLOCKS] if node.keeps_event_time else []
            timers = node.operator.timers if isinstance(node.operator, Processing) else "processing"
            kind, settings, states = "process", {"timers": timers}, _declared(declared)
            states = (*states, _TIMERS, *clocks)
        case Deduplicating(OrderedIds(), key):
            kind, settings, states = "deduplicate", {"ids": "ordered"}, [_HIGHEST]
        case Deduplicating(_, key):
            ids = pa.schema({"ids": pa.list_(given.field(key[0]).type)})
            came = [StateDescription(f"came {turn}", "map", _AT_MS, ids) for turn in range(TURNS)]
            kind, settings, states = (
                "deduplicate",
                {"ids": "within"},
                [StateDescription("seen", "value", _AT_MS), *came],
            )
        case operator:
            raise AssertionError(operator)
    by = pa.schema([given.field(name) for name in key])
    return OperatorDescription(uid, kind, by, settings, aggregates, tuple(states))


def _settings(of: Windowing) -> dict[str, str]:
    times = of.on or ("processing time" if of.is_of_processing else "none")
    found = {"windows": str(of.windows), "times": times, "trigger": str(of.trigger)}
    calendar = getattr(of.windows, "calendar", None)
    return found if calendar is None else found | {"calendar": str(calendar)}


def _elements(given: pa.Schema) -> Iterator[StateDescription]:
    for name, (key, value) in stored_columns(given).items():
        yield StateDescription(name, "value" if name == KEY_STATE else "map", value, key)


def deleted(node: Node) -> set[str]:
    """States of earlier code that a processor deletes."""
    states = node.operator.states if isinstance(node.operator, Processing | Connecting) else ()
    return {state.name for state in states if state.kind is DeclaredKind.DELETED}


def _aggregates(made: Iterable[tuple[str, Aggregate]]) -> tuple[AggregateDescription, ...]:
    return tuple(
        AggregateDescription(name, of.keeps(), tuple(f"{name}.{part}" for part, _ in of.parts)) for name, of in made
    )


def _declared(states: Iterable[StateDeclaration]) -> Iterator[StateDescription]:
    """Without those that are not to be there any more."""
    for state in states:
        if state.kind is not DeclaredKind.DELETED:
            kind = "operator list" if state.kind in _LISTS else state.kind.value
            value, key = (pa.schema([]) if of is None else of for of in (state.schema, state.key_schema))
            value = _timed(_BYTES if state.schema is None else value, state.ttl)
            yield StateDescription(state.name, kind, value, key)


def asked_for(graph: Graph, node: Node) -> list[tuple[StateSpec, pa.Schema, int]]:
    """What the node's logic asks a backend for that has nothing: its rows, blocks and lists, as
    `MemoryBackend.asked_for` has them."""
    backend = MemoryBackend(Storage("", graph.flow), 0)
    make_logic(graph, node, {}, backend, 0, 1)
    return [*backend.asked_for()]


def _asked_for(graph: Graph, node: Node) -> Iterator[StateDescription]:
    for spec, schema, keys in asked_for(graph, node):
        yield StateDescription(spec.name, spec.kind.value, pa.schema([*schema][keys:]))


def _timed(schema: pa.Schema, ttl: Ttl | None) -> pa.Schema:
    return schema if ttl is None else pa.schema([pa.field(TIMES, pa.int64()), *schema])
