"""Flights as files: what the barriers of an epoch have overtaken on the way to one chain, each subtask's in one; and
who takes it at a restore.

A part is an Arrow IPC stream of the batches that came by one input of the chain's head, in their order: the head's name
is the part's `uid`, and the input's number its `name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.contract import TaskId
from onefold.core.errors import CheckpointMismatch
from onefold.core.failpoints import failpoint
from onefold.engine.dataflow.chains import Exchange, Plan
from onefold.engine.dataflow.items import ByInput
from onefold.engine.key_groups import split_by_subtask
from onefold.engine.state import FLIGHT, is_flight
from onefold.engine.state.snapshot import IN_FLIGHT, Draft, Footer, new_name, read_footer, read_part, write_snapshot
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.graph import Shipping

__all__ = ["FlightFile", "InFlight", "flights_by_chain", "share"]

InFlight = dict[int, list[tuple[int, pa.RecordBatch]]]  # by chains' numbers: exchanges that lead there, and batches


@dataclass(frozen=True, slots=True)
class FlightFile:
    """Implements Frozen: batches to store, by the inputs of the head called `chain`."""

    storage: Storage
    task: TaskId
    max_parallelism: int
    chain: str
    batches: ByInput

    def store(self) -> str:
        name = new_name(self.task.generation, self.task.epoch) + FLIGHT
        footer = Footer("flight", self.task.epoch, 0, 0, self.max_parallelism)
        failpoint("before:StoreFlight")
        write_snapshot(self.storage, name, footer, self._drafts())
        failpoint("after:StoreFlight")
        return name

    def release(self) -> None:
        """Batches never change: nothing was copied."""

    def _drafts(self) -> Iterator[Draft]:
        for number, batches in self.batches.items():
            spec = StateSpec(self.chain, str(number), StateKind.OPERATOR)
            content = pa.BufferOutputStream()
            with pa.ipc.new_stream(content, batches[0].schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
            yield spec, IN_FLIGHT, sum(batch.num_rows for batch in batches), content.getvalue()


def share(
    exchange: Exchange, batches: Iterable[pa.RecordBatch], index: int, parallelism: int, max_parallelism: int
) -> Iterator[pa.RecordBatch]:
    """Of the flights of all subtasks that an exchange led to, in any number, what subtask `index` of `parallelism`
    takes: the rows of its key groups, or its turn."""
    for turn, batch in enumerate(batches):
        if exchange.edge.shipping is Shipping.KEYED:
            part = split_by_subtask(batch, exchange.edge.key, max_parallelism, parallelism)[index]
            if part.num_rows:
                yield part
        elif turn % parallelism == index:
            yield batch


def flights_by_chain(restoring: RestoreFrom, plan: Plan, index: int, parallelism: int) -> InFlight:
    """What worker `index` takes of what was in flight, before everything else. Raises CheckpointMismatch where an input
    that it came by is not in the plan any more, DataLoss where a file is gone, cut or changed."""
    storage = Storage(restoring.root, restoring.flow)
    found: dict[tuple[str, str], list[pa.RecordBatch]] = {}
    for handle in filter(is_flight, restoring.handles):
        for part in read_footer(storage, handle)[0].parts:
            with pa.ipc.open_stream(read_part(storage, handle, part)) as stream:
                found.setdefault((part.uid, part.name), []).extend(stream)
    ways = {(c.head.name, str(e.input)): (c.number, e) for c in plan.chains for e in c.inputs if e.can_overtake}
    flights: InFlight = {}
    for (head, number), batches in found.items():
        (chain, exchange), was = ways.get((head, number), (0, None)), batches[0].schema
        if exchange is None or (exchange.schema.names, exchange.schema.types) != (was.names, was.types):
            raise CheckpointMismatch(
                "state-flight-orphaned",
                f"flow {restoring.flow!r} has records in flight on their way to {head!r}, which is not in its graph any"
                " more, or takes other columns, or is not fed by key or rebalance(). Nothing was written. Start the"
                " earlier version, stop it with SIGTERM, which ends it with an aligned epoch, and change it then",
            )
        mine = share(exchange, batches, index, parallelism, plan.graph.max_parallelism)
        flights.setdefault(chain, []).extend((exchange.number, batch) for batch in mine)
    return flights
