"""Flights as files: what the barriers of an epoch have overtaken on the way to one chain, each subtask's in one; and
who takes it at a restore.

A part is an Arrow IPC stream of batches that came by one input of the chain's head, whose name is the part's `uid`, and
the input's number its `name`. The parts of an input are in the order in which their batches came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.errors import CheckpointMismatch
from onefold.core.failpoints import failpoint
from onefold.engine.dataflow.chains import Chain, Exchange, Plan
from onefold.engine.dataflow.flight import OVERTAKING, ByInput, share
from onefold.engine.state import FLIGHT, is_flight
from onefold.engine.state.snapshot import IN_FLIGHT, Draft, Footer, new_name, read_footer, read_part, write_snapshot
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom

__all__ = ["FlightFile", "InFlight", "flights_by_chain"]

InFlight = dict[int, list[tuple[int, pa.RecordBatch]]]  # by chains' numbers: exchanges that lead there, and batches
_PART_BYTES = 4 << 20
_BACKEND = "flight"


@dataclass(frozen=True, slots=True)
class FlightFile:
    """Implements Frozen: batches to store, by the inputs of the head called `chain`."""

    storage: Storage
    generation: int
    epoch: int
    max_parallelism: int
    chain: str
    batches: ByInput

    def store(self) -> str:
        name = new_name(self.generation, self.epoch) + FLIGHT
        footer = Footer(_BACKEND, self.epoch, 0, 0, self.max_parallelism)
        failpoint("before:StoreFlight")
        write_snapshot(self.storage, name, footer, self._drafts())
        failpoint("after:StoreFlight")
        return name

    def release(self) -> None:
        """Batches never change: nothing was copied."""

    def _drafts(self) -> Iterator[Draft]:
        for number, batches in self.batches.items():
            spec = StateSpec(self.chain, str(number), StateKind.OPERATOR)
            for some in _portions(batches):
                content = pa.BufferOutputStream()
                with pa.ipc.new_stream(content, some[0].schema) as stream:
                    for batch in some:
                        stream.write_batch(batch)
                yield spec, IN_FLIGHT, sum(batch.num_rows for batch in some), content.getvalue()


def _portions(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Of one batch or more, and of so many bytes at most where it is more."""
    some, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if some and size + batch.nbytes > _PART_BYTES:
            yield some
            some, size = [], 0
        some.append(batch)
        size += batch.nbytes
    yield some


def flights_by_chain(restoring: RestoreFrom, plan: Plan, index: int, parallelism: int) -> InFlight:
    """What worker `index` takes of what was in flight, before everything else. Raises CheckpointMismatch where an input
    that it came by is not in the plan any more, DataLoss where a file is gone, cut or changed."""
    storage = Storage(restoring.root, restoring.flow)
    found: dict[tuple[str, str], list[pa.RecordBatch]] = {}
    for handle in filter(is_flight, restoring.handles):
        for part in read_footer(storage, handle)[0].parts:
            with pa.ipc.open_stream(read_part(storage, handle, part)) as stream:
                found.setdefault((part.uid, part.name), []).extend(stream)
    ways = {(chain.head.name, str(each.input)): (chain, each) for chain in plan.chains for each in chain.inputs}
    flights: InFlight = {}
    for (head, number), batches in found.items():
        chain, exchange = _way(restoring.flow, head, ways.get((head, number)), batches[0].schema)
        mine = share(exchange, batches, index, parallelism, plan.graph.max_parallelism)
        flights.setdefault(chain.number, []).extend((exchange.number, batch) for batch in mine)
    return flights


def _way(flow: str, head: str, way: tuple[Chain, Exchange] | None, schema: pa.Schema) -> tuple[Chain, Exchange]:
    if way is not None and way[1].edge.shipping in OVERTAKING:
        now = way[1].schema
        if (now.names, now.types) == (schema.names, schema.types):
            return way
    raise CheckpointMismatch(
        "state-flight-orphaned",
        f"flow {flow!r} has records in flight on their way to {head!r}, which is not in its graph any more, or takes"
        " other columns, or is not fed by key or rebalance(). Nothing was written. Start the earlier version, stop it"
        " with SIGTERM, which ends it with an aligned epoch, and change it then",
    )
