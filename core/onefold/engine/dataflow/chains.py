"""Cuts a flow's graph into chains, between which records are exchanged. Every worker runs one subtask of each chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.source import Source
from onefold.flow.graph.event_time import before_event_time
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Querying, Reading, Writing
from onefold.flow.processing.mechanisms import Mechanism, has_snapshots
from onefold.flow.time.clocks import Highest
from onefold.flow.time.watermarks import UNTIMED, Watermarks


@dataclass(frozen=True, slots=True)
class Exchange:
    """An edge between two chains: `edge` leads into input `input` of the node numbered `target`, its chain's head.

    There is a channel from each subtask of the one chain to those subtasks of the other that `edge.shipping` reaches.
    """

    number: int
    edge: Edge
    target: int
    input: int
    schema: pa.Schema

    def senders(self, index: int, parallelism: int) -> tuple[int, ...]:
        """The subtasks from which the one numbered `index` receives."""
        return (index,) if self.edge.shipping is Shipping.FORWARD else tuple(range(parallelism))

    def receivers(self, index: int, parallelism: int) -> tuple[int, ...]:
        """The subtasks to which the one numbered `index` may send."""
        return self.senders(index, parallelism)


@dataclass(frozen=True, slots=True)
class Channel:
    """One input of a subtask: what `sender` sends over an exchange, or what is read from the source (None). It feeds
    input `port` of the chain's head."""

    exchange: int | None
    sender: int
    port: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that run in one subtask: a head, and what is fed by nodes of this chain alone, without an exchange.

    Only the head has inputs from other chains, and reads a source where it has none. A chain's exchanges lead to
    chains with higher numbers, so that chains have no circle.
    """

    number: int
    nodes: tuple[Node, ...]
    inputs: tuple[Exchange, ...]
    outputs: tuple[Exchange, ...]
    first_stream: int = 0  # the number of its first one
    watermarks: Watermarks | None = None  # of its source, where some operator is to know how far that has come

    @property
    def streams(self) -> dict[tuple[int, str | None], int]:
        """The outputs of its nodes, numbered through all chains."""
        outputs = [(node.number, output) for node in self.nodes for output in node.outputs()]
        return {stream: self.first_stream + at for at, stream in enumerate(outputs)}

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def source(self) -> Source | None:
        """What its head reads; None where it has inputs."""
        return self.head.operator.source if isinstance(self.head.operator, Reading) else None

    @property
    def highest(self) -> Highest | None:
        """What looks at the times of what its head reads; None where nobody has to know them."""
        if self.watermarks is None:
            return None
        return Highest(present(self.head.uid, "a source has a uid"), self.watermarks)

    def channels(self, index: int, parallelism: int) -> tuple[Channel, ...]:
        """The inputs of its subtask `index`."""
        if self.source is not None:
            return (Channel(None, index, 0),)
        return tuple(
            Channel(exchange.number, sender, exchange.input)
            for exchange in self.inputs
            for sender in exchange.senders(index, parallelism)
        )

    def turns(self, channels: Sequence[Channel]) -> list[int]:
        """These channels by their numbers, in a fixed order: broadcast rows, as of rules, come before those that they
        are for."""
        broadcast = {each.number for each in self.inputs if each.edge.shipping is Shipping.BROADCAST}
        return sorted(range(len(channels)), key=lambda number: channels[number].exchange not in broadcast)

    @property
    def uid(self) -> str | None:
        """Of its head, where that keeps state; no other node of a chain does."""
        return present(self.head.uid, f"{self.head.name} keeps state") if self.head.keeps_state else None


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph, cut into chains, in an order in which every chain comes after those that feed it. `mechanism` protects
    what goes through them."""

    graph: Graph
    chains: tuple[Chain, ...]
    exchanges: tuple[Exchange, ...]
    mechanism: Mechanism = "barriers"

    def chain_of(self, node: int) -> Chain:
        return next(chain for chain in self.chains if any(each.number == node for each in chain.nodes))

    @property
    def streams(self) -> dict[tuple[int, str | None], int]:
        """The numbers of all outputs of nodes."""
        return {stream: number for chain in self.chains for stream, number in chain.streams.items()}

    @property
    def edges(self) -> list[tuple[Node, int]]:
        """Of the graph, by the nodes that they lead to: those, and the numbers of the streams that take them."""
        streams = self.streams
        return [(node, streams[edge.source, edge.output]) for node in self.graph.nodes for edge in node.inputs]

    @property
    def by_uid(self) -> dict[str, Chain]:
        """The chains whose head keeps state, by its uid."""
        return {chain.uid: chain for chain in self.chains if chain.uid is not None}

    @property
    def has_state(self) -> bool:
        """Whether an epoch has snapshots of operators."""
        return has_snapshots(self.mechanism) and bool(self.by_uid)


def plan(graph: Graph, sinks_apart: bool = False, mechanism: Mechanism = "barriers") -> Plan:
    """A node without state joins the chain of its inputs where all of them are in one chain, and none is exchanged.
    With `sinks_apart` each sink is a chain of its own, and what Spark makes; so it is where epochs are the sinks'
    alone."""
    sinks_apart = sinks_apart or not has_snapshots(mechanism)
    chain_of: dict[int, int] = {}
    members: list[list[Node]] = []
    exchanges: list[Exchange] = []
    for node in graph.nodes:
        sources = {chain_of[edge.source] for edge in node.inputs}
        is_fed = len(sources) == 1 and all(edge.shipping is Shipping.FORWARD for edge in node.inputs)
        if is_fed and not node.keeps_state and not (sinks_apart and isinstance(node.operator, Querying | Writing)):
            chain_of[node.number] = sources.pop()
            members[chain_of[node.number]].append(node)
            continue
        chain_of[node.number] = len(members)
        members.append([node])
        for number, edge in enumerate(node.inputs):
            exchanges.append(Exchange(len(exchanges), edge, node.number, number, graph.schema(edge)))
    firsts = [0, *accumulate(sum(len(node.outputs()) for node in nodes) for nodes in members)]
    timed = before_event_time(graph)
    read = {node.number: of.watermarks or (UNTIMED if node.number in timed else None) for node, of in graph.readings()}
    chains = tuple(
        Chain(
            number,
            tuple(nodes),
            tuple(exchange for exchange in exchanges if exchange.target == nodes[0].number),
            tuple(exchange for exchange in exchanges if chain_of[exchange.edge.source] == number),
            firsts[number],
            read.get(nodes[0].number),
        )
        for number, nodes in enumerate(members)
    )
    return Plan(graph, chains, tuple(exchanges), mechanism)
