"""Flights as files: what the barriers of an epoch have overtaken on the way to one chain, each subtask's in one; and
who takes it at a restore.

A part is an Arrow IPC stream of the batches that came by one input of the chain's head, in their order: the head's name
is the part's `uid`, and `<input>` its `name`; for a head that goes by event time `<input>@<epoch>`. Such a file has a
first part that says, in JSON, when each of these epochs was opened, and what it has said of event time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.contract import TaskId
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.failpoints import failpoint
from onefold.engine.dataflow.chains import Exchange, Plan
from onefold.engine.dataflow.items import EpochInFlight
from onefold.engine.key_groups import split_by_subtask
from onefold.engine.state import FLIGHT, is_flight
from onefold.engine.state.snapshot import IN_FLIGHT, Draft, Footer, new_name, read_footer, read_part, write_snapshot
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.graph.nodes import Shipping
from onefold.flow.time.clocks import Times

InFlight = dict[int, list[EpochInFlight]]  # by the numbers of chains; batches are by those of exchanges
_TIMES = "$times"


@dataclass(frozen=True, slots=True)
class FlightFile:
    """Implements Frozen: what subtask `index` of `parallelism` has in flight to the head called `chain`."""

    storage: Storage
    task: TaskId
    max_parallelism: int
    chain: str
    epochs: Sequence[EpochInFlight]
    index: int = 0
    parallelism: int = 1

    def store(self) -> str:
        name = new_name(self.task.generation, self.task.epoch) + FLIGHT
        footer = Footer("flight", self.task.epoch, self.index, self.parallelism, self.max_parallelism)
        failpoint("before:StoreFlight")
        write_snapshot(self.storage, name, footer, self._drafts())
        failpoint("after:StoreFlight")
        return name

    def release(self) -> None:
        """Batches never change: nothing was copied."""

    def _drafts(self) -> Iterator[Draft]:
        timed = [
            (each.epoch, each.timestamp_ms, _as_rows(each.times)) for each in self.epochs if each.times is not None
        ]
        if timed:
            yield self._spec(_TIMES), IN_FLIGHT, len(timed), json.dumps(timed).encode()  # comes first
        for each in self.epochs:
            for number, batches in each.batches.items():
                content = pa.BufferOutputStream()
                with pa.ipc.new_stream(content, batches[0].schema) as stream:
                    for batch in batches:
                        stream.write_batch(batch)
                spec = self._spec(f"{number}@{each.epoch}" if timed else str(number))
                yield spec, IN_FLIGHT, sum(batch.num_rows for batch in batches), content.getvalue()

    def _spec(self, name: str) -> StateSpec:
        return StateSpec(self.chain, name, StateKind.OPERATOR)


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
    that it came by is not in the plan any more, ConfigError where as many workers as there were have to go on, DataLoss
    where a file is gone, cut or changed."""
    storage, flow = Storage(restoring.root, restoring.flow), restoring.flow
    chains = {(chain.head.name, chain.head.keeps_event_time): chain for chain in plan.chains}
    flights, shared = InFlight(), dict[Exchange, list[pa.RecordBatch]]()
    for handle in filter(is_flight, restoring.handles):
        footer, _ = read_footer(storage, handle)
        head, is_timed = footer.parts[0].uid, footer.parts[0].name == _TIMES
        if (chain := chains.get((head, is_timed))) is None:
            raise _orphaned(flow, head)
        if is_timed and footer.end != parallelism:  # each has clocks of its own, by which nobody else can go
            raise ConfigError(
                "flight-worker-count",
                f"flow {flow!r} has records in flight on their way to {head!r}, which goes by event time, in"
                f" {footer.end} workers, and {parallelism} workers would judge them by other times. Nothing was"
                f" written. Start it with workers={footer.end}, stop it with SIGTERM, which ends it with an aligned"
                " epoch; then with any other number",
            )
        if is_timed and footer.first != index:
            continue  # of another subtask, and may be large
        parts = {part.name: read_part(storage, handle, part) for part in footer.parts}
        said = parts.pop(_TIMES, None)
        epochs = {"": EpochInFlight({})} if said is None else {str(of[0]): _opened(*of) for of in json.loads(said)}
        ways = {str(each.input): each for each in chain.inputs if each.edge.can_overtake}
        for name, content in parts.items():
            number, _, epoch = name.partition("@")
            with pa.ipc.open_stream(content) as stream:
                way, was, batches = ways.get(number), stream.schema, [*stream]
            if way is None or (way.schema.names, way.schema.types) != (was.names, was.types):
                raise _orphaned(flow, head)
            epochs[epoch].batches[way.number] = batches
            if said is None:
                shared.setdefault(way, []).extend(batches)
        if is_timed:
            flights[chain.number] = [*epochs.values()]
    for way, batches in shared.items():
        mine = [*share(way, batches, index, parallelism, plan.graph.max_parallelism)]
        (of_chain,) = flights.setdefault(plan.chain_of(way.target).number, [EpochInFlight({})])
        of_chain.batches[way.number] = mine
    return flights


def _orphaned(flow: str, head: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        "state-flight-orphaned",
        f"flow {flow!r} has records in flight on their way to {head!r}, which is not in its graph any more, or takes"
        " other columns, or goes by event time since or no more, or is not fed by key or rebalance(). Nothing was"
        " written. Start the earlier version, stop it with SIGTERM, which ends it with an aligned epoch, and change it"
        " then",
    )


def _as_rows(times: Times) -> list[list[Any]]:
    read = [[*partition, us] for partition, us in sorted(times.read.items())]
    return [sorted(map(list, times.named)), read, sorted(times.ended)]


def _opened(epoch: int, timestamp_ms: int, said: list[list[Any]]) -> EpochInFlight:
    named, read, ended = said
    at = {(uid, name): us for uid, name, us in read}
    return EpochInFlight({}, epoch, timestamp_ms, Times(frozenset(map(tuple, named)), at, frozenset(ended)))
