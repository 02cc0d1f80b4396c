"""Flights as files: what the barriers of an epoch have overtaken on the way to one chain, each subtask's in one.

A part is an Arrow IPC stream of batches that came by one input of the chain's head, whose name is the part's `uid`, and
the input's number its `name`. The parts of an input are in the order in which their batches came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.failpoints import failpoint
from onefold.engine.state import FLIGHT
from onefold.engine.state.snapshot import (
    IN_FLIGHT,
    Draft,
    Footer,
    new_name,
    read_footer,
    read_part,
    write_snapshot,
)
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage

__all__ = ["FlightFile", "read_flight"]

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
    batches: Mapping[int, Sequence[pa.RecordBatch]]

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
    some: list[pa.RecordBatch] = []
    for batch in batches:
        if some and sum(each.nbytes for each in (*some, batch)) > _PART_BYTES:
            yield some
            some = []
        some.append(batch)
    if some:
        yield some


def read_flight(storage: Storage, handle: str) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """Chains' heads, inputs and batches. Raises DataLoss where the file is gone, cut or changed."""
    footer, _ = read_footer(storage, handle)
    for part in footer.parts:
        with pa.ipc.open_stream(read_part(storage, handle, part)) as stream:
            yield from ((part.uid, part.name, batch) for batch in stream)
