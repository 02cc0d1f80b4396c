"""How rows get to a sink: which of them its writers need in one task, and what a sink of changing rows must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from onefold.core.contract import Sink, Upserting
from onefold.core.errors import ConfigError
from onefold.core.writing.arrangement import EPOCH_COLUMN, needed_by
from onefold.core.writing.replacing import Origins, check_replaces
from onefold.flow.building import NodeOrigin, Nodes, check_key, origin_of
from onefold.flow.graph import (
    Aggregating,
    Connecting,
    Deduplicating,
    Edge,
    Filtering,
    FlatMapping,
    MappingBatches,
    Node,
    Processing,
    Querying,
    Reducing,
    Selecting,
    Shipping,
    Uniting,
    Writing,
)

__all__ = ["STATE", "add_sink", "with_query"]

STATE = "state"  # the participant of an epoch that keeps the state of operators


def add_sink(nodes: Nodes, edge: Edge, sink: Sink, *, is_letters: bool = False) -> None:
    """Write the rows of an edge to a sink. Raises ConfigError where they do not go together."""
    if sink.name in (STATE, *nodes.sinks()):
        raise ConfigError(
            "sink-names",
            f'flow {nodes.flow!r} cannot have a second sink {sink.name!r}: give one name="...", another one'
            + (f", and not {STATE!r}, which is the state's" if sink.name == STATE else ""),
        )
    if is_letters:
        nodes.add(Writing(sink, is_letters=True), [edge], None)
        return
    schema, upsert = nodes.schema(edge), sink.upsert() if isinstance(sink, Upserting) else None
    is_numbered = upsert is not None and EPOCH_COLUMN in upsert.order and EPOCH_COLUMN not in schema.names
    origin = origin_of(nodes, edge)
    groups = _groups(origin)
    if isinstance(origin.node.operator, Querying):
        pass  # Spark knows its groups, and looks at them when it starts
    elif groups is not None:
        check_replaces(
            sink.name,
            upsert,
            partial(_origins, groups),
            row="an aggregate's or a reduce's row",
            instead="emit what is final from a process()",
        )
    elif upsert is not None and is_numbered and {*upsert.order} == {EPOCH_COLUMN}:
        raise _ties(sink.name)
    nodes.add(Writing(sink, is_numbered=is_numbered), [_arranged(nodes, edge, sink, origin)], None)


def _groups(origin: NodeOrigin) -> dict[str, str | None] | None:
    """Where the rows are those of groups, written again when they change: the groups' key, and its names now."""
    operator = origin.node.operator
    if not isinstance(operator, Aggregating | Reducing):
        return None
    return {name: origin.names.get(name) for name in operator.key}


def with_query(flow: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of a flow. Where Spark makes rows, all of its sinks get the number of their epoch, or none. Raises
    ConfigError where something stands beside that which cannot."""
    found = [(node, node.operator) for node in nodes if isinstance(node.operator, Querying)]
    if not found:
        return tuple(nodes)
    (query, operator), *others = found
    if others:
        raise _misplaced(flow, others[0][0], f"is one more beside {query.name!r}: let one SELECT or function do both")
    fed: dict[int, Writing] = {}
    for node in nodes:
        match node.operator:
            case Processing() | Connecting() | Reducing() | Aggregating() | Deduplicating():
                told = f"{node.name!r}, which keeps state: let Spark do that, too, or make two flows of it"
                raise _misplaced(flow, query, f"cannot stand beside {told}")
            case Writing(is_letters=False) as writing if node.inputs[0].source == query.number:
                fed[node.number] = writing
            case Writing(sink, is_letters=False):
                told = f"the sink {sink.name!r}, which gets other rows: write these with a flow of their own"
                raise _misplaced(flow, query, f"cannot stand beside {told} (bad records with dead_letters=)")
    is_numbered = operator.output_mode == "update" and any(writing.is_numbered for writing in fed.values())
    numbered = {number: replace(writing, is_numbered=is_numbered) for number, writing in fed.items()}
    return tuple(replace(node, operator=numbered.get(node.number, node.operator)) for node in nodes)


def _is_rebalanced(nodes: Nodes, edge: Edge) -> bool:
    """Whether `rebalance` spread the rows over the tasks after they were read or last brought together by key."""
    node = nodes.made[edge.source]
    is_stateless = isinstance(node.operator, Filtering | Selecting | MappingBatches | FlatMapping | Uniting)
    before = is_stateless and any(_is_rebalanced(nodes, each) for each in node.inputs)
    return before or edge.shipping is Shipping.REBALANCE


def _arranged(nodes: Nodes, edge: Edge, sink: Sink, origin: NodeOrigin) -> Edge:
    """The edge to the sink, with an exchange where rows of one key must come to one writer."""
    need = needed_by(sink)
    is_rebalanced = _is_rebalanced(nodes, edge)
    if need.in_place and is_rebalanced:
        raise ConfigError(
            "sink-rebalanced",
            f"sink {sink.name!r} takes rows in the tasks and the order in which they come, and rebalance() spreads them"
            " over all tasks: leave out rebalance(), or let the sink have them by key",
        )
    if need.in_place or not need.partition_by:
        return edge
    if isinstance(origin.node.operator, Aggregating) and not is_rebalanced:
        now = {*(_groups(origin) or {}).values()}
        if now <= {*need.partition_by}:  # equal values of these are in one task already
            return edge
    check_key(need.partition_by, nodes.schema(edge), f"sink {sink.name!r}, which needs rows by {need.partition_by}")
    return replace(edge, shipping=Shipping.KEYED, key=need.partition_by)


def _ties(sink: str) -> ConfigError:
    return ConfigError(
        "epoch-order-ties",
        f"the flow may write several rows of a key in one epoch, and for sink {sink!r}, whose order= is"
        f" {EPOCH_COLUMN!r} alone, none of them is the newest. Let order= be {EPOCH_COLUMN!r} and a column that grows"
        " with each row of a key, such as a count or a time; or write the rows of an aggregate or a reduce, which have"
        " one of each key in an epoch, filtered and selected at most",
    )


def _origins(key: Mapping[str, str | None], names: Sequence[str]) -> Origins:
    """Of columns of groups, whose key has these names, and now those."""
    left_out = tuple(name for name, now in key.items() if now not in names)
    return Origins(tuple(name for name in names if name not in key.values()), (), left_out)


def _misplaced(flow: str, node: Node, why: str) -> ConfigError:
    return ConfigError("spark-operator-place", f"flow {flow!r}: {node.name!r}, which only Spark runs, {why}")
