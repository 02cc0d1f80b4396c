"""How a graph is cut into chains."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.engine.dataflow.chains import plan
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Filtering, Operator, Reading, Reducing, Uniting, Writing

ROWS = pa.schema([("key", pa.string())])
SOURCE: Any = Reading("a source")  # type: ignore[arg-type]
SINK: Any = Writing(None)  # type: ignore[arg-type]
FILTER = Filtering(pc.field("key") != "")


def graph(*nodes: tuple[Operator, tuple[Edge, ...]]) -> Graph:
    made = (Node(n, op, edges, None if op is SINK else ROWS, (), f"uid-{n}") for n, (op, edges) in enumerate(nodes))
    return Graph("test", tuple(made))


def chains(of: Graph) -> list[list[int]]:
    return [[node.number for node in chain.nodes] for chain in plan(of).chains]


def test_what_is_only_forwarded_is_one_chain_with_all_its_branches() -> None:
    found = graph((SOURCE, ()), (FILTER, (Edge(0),)), (SINK, (Edge(1),)), (SINK, (Edge(0),)))
    assert chains(found) == [[0, 1, 2, 3]]


def test_an_exchange_begins_a_chain() -> None:
    keyed = Edge(0, Shipping.KEYED, ("key",))
    cut = plan(graph((SOURCE, ()), (Reducing(lambda a, _: a, ("key",)), (keyed,)), (SINK, (Edge(1),))))
    assert [[node.number for node in chain.nodes] for chain in cut.chains] == [[0], [1, 2]]
    assert [each.number for each in cut.chains[0].outputs] == [each.number for each in cut.chains[1].inputs] == [0]
    assert cut.chains[1].uid == "uid-1"


def test_an_operator_with_state_has_a_chain_of_its_own_even_without_an_exchange() -> None:
    assert chains(graph((SOURCE, ()), (Reducing(lambda a, _: a, ("key",)), (Edge(0),)))) == [[0], [1]]


def test_a_union_of_two_chains_is_fed_by_channels_of_its_own_worker_alone() -> None:
    found = graph((SOURCE, ()), (SOURCE, ()), (Uniting(), (Edge(0), Edge(1))), (SINK, (Edge(2),)))
    cut = plan(found)
    assert chains(found) == [[0], [1], [2, 3]]
    assert [(c.exchange, c.sender, c.port) for c in cut.chains[2].channels(1, 2)] == [(0, 1, 0), (1, 1, 1)]


def test_a_union_within_one_chain_stays_in_it() -> None:
    assert chains(graph((SOURCE, ()), (FILTER, (Edge(0),)), (Uniting(), (Edge(0), Edge(1))), (SINK, (Edge(2),)))) == [
        [0, 1, 2, 3]
    ]


def test_a_keyed_exchange_has_a_channel_from_every_worker() -> None:
    keyed = Edge(0, Shipping.KEYED, ("key",))
    cut = plan(graph((SOURCE, ()), (Reducing(lambda a, _: a, ("key",)), (keyed,))))
    assert [(c.exchange, c.sender) for c in cut.chains[1].channels(0, 3)] == [(0, 0), (0, 1), (0, 2)]
    assert [c.exchange for c in cut.chains[0].channels(0, 3)] == [None]
