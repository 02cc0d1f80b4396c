"""Makes the logics of a chain's nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import partial

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Sink
from onefold.core.values.ids import OrderedIds
from onefold.core.writing.dead_letters import Policy
from onefold.engine.logics.deduplicating import IdsWithinLogic, OrderedIdsLogic
from onefold.engine.logics.endpoints import ReadingLogic, StampingLogic, WritingLogic
from onefold.engine.logics.event_time import ProcessingClocks, kept_clocks
from onefold.engine.logics.expiring_logic import ExpiringLogic
from onefold.engine.logics.joins.join_logic import join_logic
from onefold.engine.logics.logic import BaseLogic, Input, Logic, Output
from onefold.engine.logics.processing import ProcessingLogic
from onefold.engine.logics.reducing import AggregatingLogic, ReducingLogic
from onefold.engine.logics.windows.elements import ElementsLogic
from onefold.engine.logics.windows.sessions import SessionLogic
from onefold.engine.logics.windows.slicing import SlicingLogic
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.handles import KeyedHandle
from onefold.engine.state.state_backend import StateTables
from onefold.flow.evaluation import evaluation
from onefold.flow.graph.event_time import clocks_of
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import (
    Aggregating,
    Connecting,
    Deduplicating,
    Joining,
    Processing,
    Reading,
    Reducing,
    Windowing,
    Writing,
)
from onefold.flow.time.windows import Sessions


def make_logic(
    graph: Graph, node: Node, sinks: Mapping[int, Sink], backend: StateTables | None, index: int, parallelism: int
) -> Logic:
    """The logic of one node in subtask `index`. `sinks` are the opened ones, by the numbers of their nodes."""
    match node.operator:
        case Reading(source, watermarks):
            is_stamped = watermarks is not None and watermarks.by_epochs
            return (StampingLogic if is_stamped else ReadingLogic)(Policy.of(source, None))
        case Writing(_, is_letters, is_numbered):
            return WritingLogic(sinks[node.number], is_letters, is_numbered)
        case _ if node.keeps_state:
            return _stateful(graph, node, present(backend, f"{node.name} keeps state"), index, parallelism)
    return TransformingLogic(node)


def _stateful(graph: Graph, node: Node, backend: StateTables, index: int, parallelism: int) -> Logic:
    uid, given = present(node.uid, f"{node.name} keeps state"), [graph.schema(edge) for edge in node.inputs]
    of_time = partial(kept_clocks, uid, backend, clocks_of(graph.nodes, node.inputs)) if node.keeps_event_time else None
    expiry = Expiry(uid, backend)
    logic: Logic
    match node.operator:
        case Windowing() as operator:
            by_states = SessionLogic if isinstance(operator.windows, Sessions) else SlicingLogic
            made = by_states if operator.elements is None else ElementsLogic
            logic = made(node, operator, given[0], of_time or ProcessingClocks, backend)
        case Joining() as operator:
            logic = join_logic(node, operator, given, present(of_time, "joins have clocks"), backend)
        case Deduplicating(OrderedIds()) as operator:
            logic = OrderedIdsLogic(node, operator, backend)
        case Deduplicating() as operator:
            logic = IdsWithinLogic(node, operator, backend, graph.max_parallelism)
        case Processing(processor, key) | Connecting(processor, key) as operator:
            handle = KeyedHandle(uid, backend, expiry, subtask=index, subtasks=parallelism)
            by_event = isinstance(operator, Processing) and operator.timers == "event"
            logic = ProcessingLogic(node, copy.copy(processor), key, handle, of_time if by_event else None)
        case Reducing(function, key, ttl):
            logic = ReducingLogic(node, function, key, expiry, ttl)
        case Aggregating(aggregates, key, ttl):
            logic = AggregatingLogic(given[0], aggregates, key, expiry, ttl)
        case operator:
            raise AssertionError(operator)
    expires_by_event = any(ttl.clock == "event" for ttl in node.expires.values())
    return ExpiringLogic(logic, expiry, of_time if expires_by_event else None) if node.expires else logic


class TransformingLogic(BaseLogic):
    """What `flow.evaluation` makes of each batch."""

    def __init__(self, node: Node) -> None:
        self._evaluate = evaluation(node)

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        return self._evaluate(batch)
