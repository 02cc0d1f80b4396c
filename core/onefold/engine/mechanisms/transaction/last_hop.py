"""The last hop, which is a flow of its own: its sources are what hops have sent to sinks, and its positions the numbers
of channels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.positions import Positions, Range
from onefold.core.source import Keep, Part, Source, Split
from onefold.core.values.batches import empty_batch
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.mechanisms.transaction.channels import ChannelMap, HopChannel
from onefold.engine.mechanisms.transaction.database import View, lost
from onefold.engine.workers.frames import decoded_item
from onefold.flow.graph.nodes import Edge, Node
from onefold.flow.graph.operators import Reading

if TYPE_CHECKING:
    from onefold.engine.mechanisms.transaction.hops import Hops

READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class HopSetup:
    """What hops run with: the folder of their databases, the flow's resolved sources by their nodes, the backend."""

    root: Path
    sources: Mapping[int, Source]
    state: str
    scratch: str | None


@dataclass(frozen=True)
class OutboxSource:
    """`channels` by the partitions that positions name. `setup` and `hops` are there once the flow runs: it is its own
    planner then, and asking that lets the hops go on. Pickled, it has no hops."""

    name: str
    schema: pa.Schema
    channels: Mapping[str, HopChannel]
    setup: HopSetup | None = None
    hops: Hops | None = field(default=None, compare=False, repr=False)
    on_error = "fail"
    bad_records_max = 0
    unit = "bundle"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "hops": None}

    def covers(self, name: str) -> bool:
        return name in self.channels

    def resolved(self, keep: Keep) -> OutboxSource:
        del keep
        return self

    def arrow_schema(self) -> pa.Schema:
        return self.schema

    def planner(self, *_: Any) -> OutboxSource:
        return self

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        """Raises DataLoss where less is there than the range."""
        del guarded
        at, end = split.range
        channel, none = self.channels[split.partition], empty_batch(BAD_COLUMNS)
        view = View(present(self.setup, "it is read where its flow runs").root / channel.sender)
        try:
            while at < end:
                sent = view.outbox(channel.name, at, end, READ_BYTES)
                if not sent or sent[0][0] != at + 1:
                    raise lost(split.partition, at + 1)
                yield from (Part(decoded_item(frame, self.schema), none) for _, frame in sent)
                at += len(sent)
        finally:
            view.close()

    # as its planner

    def initial(self) -> Positions:
        return Positions.of(dict.fromkeys(self.channels, 0))

    def latest(self, start: Positions) -> Positions:
        """Raises DataLoss where hops have sent less than the sinks have."""
        found = {name: self._hops.database.sent(channel) for name, channel in self.channels.items()}
        for name, at in start.items:
            if found[name] < int(at):
                raise lost(name, int(at))
        return Positions.of(found)

    def behind(self, start: Positions) -> Mapping[str, int]:
        return {name: end - begin for name, (begin, end) in _between(start, self.latest(start)).items()}

    def end(self, start: Positions) -> Positions:
        self._hops.look()
        return self.latest(start)

    def cut(self) -> Collection[str]:
        return ()

    def splits(self, span: Range) -> list[Split]:
        found = _between(span.start, span.end).items()
        return [Split(name, (begin, end), end - begin) for name, (begin, end) in found if begin < end]

    def is_done(self, at: Positions) -> bool:
        return self._hops.is_done and self.latest(at) == at

    def completed(self, end: Positions) -> None:
        self._hops.delivered({self.channels[name]: int(at) for name, at in end.items})

    def close(self) -> None:
        return

    @property
    def _hops(self) -> Hops:
        return present(self.hops, "it is planned where its flow runs")


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


def _between(start: Positions, end: Positions) -> dict[str, tuple[int, int]]:
    begin = dict(start.items)
    return {name: (int(begin.get(name, 0)), int(at)) for name, at in end.items}
