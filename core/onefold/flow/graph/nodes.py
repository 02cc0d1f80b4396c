"""The graph that a flow describes: operators as nodes, the way of records between them as edges. Runtimes read it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Sink
from onefold.core.errors import ConfigError
from onefold.core.source import Keep, Source
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.core.writing.dead_letters import LETTER_COLUMNS
from onefold.flow.graph.operators import (
    Aggregating,
    Connecting,
    Deduplicating,
    Elided,
    Filtering,
    FlatMapping,
    Joining,
    MappingBatches,
    Operator,
    Processing,
    Querying,
    Reading,
    Reducing,
    Selecting,
    Uniting,
    Windowing,
    Writing,
)
from onefold.flow.processing.evolution import NO_EVOLUTION, Evolution
from onefold.flow.time.ttl import Ttl

if TYPE_CHECKING:
    from onefold.flow.time.alignment import Alignment

MAX_PARALLELISM = 32_768  # of key groups: as many as 15 bits name

_CALLED: dict[type, str] = {
    Filtering: "filter",
    Selecting: "select",
    MappingBatches: "map_batches",
    FlatMapping: "flat_map",
    Uniting: "union",
    Querying: "spark",
}  # others have a uid


class Shipping(enum.Enum):
    """How an edge's records get from the subtasks of one operator to those of the next."""

    FORWARD = "forward"  # each subtask to its own one: no exchange
    KEYED = "keyed"  # by the key group of `Edge.key`
    REBALANCE = "rebalance"  # evenly
    BROADCAST = "broadcast"  # all records to every subtask


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of a node: `output` of the node numbered `source`; None is its main output, a name a side output."""

    source: int
    shipping: Shipping = Shipping.FORWARD
    key: tuple[str, ...] = ()
    output: str | None = None

    @property
    def can_overtake(self) -> bool:
        """Whether what barriers overtake on it could be shared out anew at a restore."""
        return self.shipping in (Shipping.KEYED, Shipping.REBALANCE)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in a graph. `schema` is its main output's, `sides` its side outputs'; a sink has neither.
    `queryable`: its state can be asked for while it runs."""

    number: int
    operator: Operator
    inputs: tuple[Edge, ...]
    schema: pa.Schema | None
    sides: tuple[tuple[str, pa.Schema], ...] = ()
    uid: str | None = None
    queryable: bool = False

    @property
    def name(self) -> str:
        """For people: the uid, the sink's name, or what a user called and a number."""
        if isinstance(self.operator, Writing):
            return self.operator.sink.name
        return self.uid or f"{_CALLED[type(self.operator)]}-{self.number}"

    @property
    def keeps_state(self) -> bool:
        """Whether it remembers what it saw, which a runtime keeps for it."""
        keeping = Processing | Reducing | Aggregating | Windowing | Joining | Deduplicating | Connecting | Elided
        return isinstance(self.operator, keeping)

    @property
    def gives_again(self) -> bool:
        """Whether it gives a row of a group again in each epoch that changes it."""
        of = self.operator
        return isinstance(of, Aggregating | Reducing) or (isinstance(of, Windowing) and of.fires_again)

    @property
    def keeps_event_time(self) -> bool:
        """Whether it goes by a watermark."""
        has_timers = isinstance(self.operator, Processing) and self.operator.timers == "event"
        expires = any(ttl.clock == "event" for ttl in self.expires.values())
        has_windows = isinstance(self.operator, Windowing) and not self.operator.is_of_processing
        return has_timers or expires or has_windows or isinstance(self.operator, Joining)

    @property
    def expires(self) -> dict[str, Ttl]:
        """How long its states live, by their names; those that live for ever are left out."""
        match self.operator:
            case Processing(_, _, states) | Connecting(_, _, states):
                return {state.name: state.ttl for state in states if state.ttl is not None}
            case Reducing(_, _, Ttl() as ttl):
                return {"reduced": ttl}
            case Aggregating(_, _, Ttl() as ttl):
                return {"aggregates": ttl}
            case _:
                return {}

    def outputs(self) -> dict[str | None, pa.Schema]:
        """The schema of each output, by its name; None is the main one."""
        return {} if self.schema is None else {None: self.schema, **dict(self.sides)}


@dataclass(frozen=True, slots=True)
class Graph:
    """All of a flow. Nodes are in an order in which every node comes after its inputs; `nodes[n].number == n`.
    `endpoints` is what its store keeps of it for commands that do not import it; `evolution` says what becomes of the
    state of an earlier version; `alignments` which sources wait for each other."""

    flow: str
    nodes: tuple[Node, ...]
    max_parallelism: int = 128
    endpoints: str | None = None
    evolution: Evolution = NO_EVOLUTION
    alignments: tuple[Alignment, ...] = ()

    def outputs(self, node: Node) -> list[tuple[Node, Edge]]:
        """The nodes that read from it, and by which edge."""
        return [(other, edge) for other in self.nodes for edge in other.inputs if edge.source == node.number]

    def schema(self, edge: Edge) -> pa.Schema:
        """Of the records on an edge."""
        return self.nodes[edge.source].outputs()[edge.output]

    def writings(self) -> Iterator[tuple[Node, Writing]]:
        """The nodes that write to sinks, those of dead letters last."""
        found = [(node, node.operator) for node in self.nodes if isinstance(node.operator, Writing)]
        yield from sorted(found, key=lambda each: each[1].is_letters)

    def letters(self) -> tuple[str, ...]:
        """The sinks of dead letters, by their names."""
        return tuple(writing.sink.name for _, writing in self.writings() if writing.is_letters)

    def letters_of(self, source: str) -> Sink | None:
        """The sink of the dead letters of the source of that name."""
        reading = next((node.number for node, reading in self.readings() if reading.source.name == source), None)
        found = [of.sink for node, of in self.writings() if of.is_letters and node.inputs[0].source == reading]
        return next(iter(found), None)

    def readings(self) -> Iterator[tuple[Node, Reading]]:
        """The nodes that read sources."""
        for node in self.nodes:
            if isinstance(node.operator, Reading):
                yield node, node.operator

    @property
    def keeps_state(self) -> bool:
        """Whether its operators remember what they saw, or a query of Spark's does."""
        found = self.querying()
        return (found is not None and found[1].output_mode == "update") or any(node.keeps_state for node in self.nodes)

    def querying(self) -> tuple[Node, Querying] | None:
        """The node whose rows Spark makes, if there is one."""
        found = [(node, node.operator) for node in self.nodes if isinstance(node.operator, Querying)]
        return next(iter(found), None)

    def resolved(self, node: Node, keep: Keep) -> Source:
        """The source of a node that reads, with the schema that the pipeline found first. Raises ConfigError where the
        flow was built with another."""
        operator = present(
            node.operator if isinstance(node.operator, Reading) else None, f"{node.name} reads no source"
        )
        source = operator.source.resolved(keep)
        found = operator.given(source.arrow_schema())
        if not found.equals(node.schema):
            raise ConfigError(
                "source-schema-changed",
                f"flow {self.flow!r} began with the columns {', '.join(map(str, found))} of the source {source.name!r},"
                f" and now finds {', '.join(map(str, node.schema or ()))}: give the source its schema, as the flow"
                " needs it",
            )
        return source

    def schemas(self) -> dict[str, pa.Schema]:
        """What each sink is opened with, by its name."""
        return {writing.sink.name: self.written(node) for node, writing in self.writings()}

    def written(self, node: Node) -> pa.Schema:
        """What the sink of a node that writes is opened with: its input's columns, and those that the runtime adds."""
        writing, given = node.operator, self.schema(node.inputs[0])
        if isinstance(writing, Writing) and writing.is_letters:
            return LETTER_COLUMNS
        is_numbered = isinstance(writing, Writing) and writing.is_numbered
        return given.append(pa.field(EPOCH_COLUMN, pa.int64())) if is_numbered else given


def feeding(nodes: Sequence[Node], edges: Iterable[Edge]) -> list[Node]:
    """The nodes whose rows come to some edges, in their order."""
    found = {edge.source for edge in edges}
    for node in reversed(nodes):
        if node.number in found:
            found |= {edge.source for edge in node.inputs}
    return [node for node in nodes if node.number in found]
