"""The last hop of a flow as a flow of its own: its sources are what hops have sent to sinks."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.mechanisms.transaction.channels import ChannelMap
from onefold.engine.mechanisms.transaction.outbox_source import OutboxSource
from onefold.flow.graph import Edge, Node, Reading

__all__ = ["last_hop"]


def last_hop(whole: Plan, workers: int) -> Plan:
    """Of each sink a source and a sink, under the flow's own name: worker n reads what is for the sink's subtask n, by
    the number at the end of a partition's name."""
    channels, nodes = ChannelMap(whole, workers), list[Node]()
    for number, writing in channels.sinks.items():
        (exchange,) = (each for each in whole.exchanges if each.target == number)
        name, first, schema = f"hops to {writing.sink.name}", len(nodes), exchange.schema
        mine = {f"{name}/{by}/{to}": each for (of, by, to), each in channels.between.items() if of == exchange.number}
        if writing.is_numbered:
            schema = schema.append(pa.field(EPOCH_COLUMN, pa.int64()))
        nodes.append(Node(first, Reading(OutboxSource(name, schema, mine)), (), schema, (), name))
        nodes.append(Node(first + 1, replace(writing, is_numbered=False), (Edge(first),), None))
    return replace(plan(replace(whole.graph, nodes=tuple(nodes))), mechanism=whole.mechanism)
