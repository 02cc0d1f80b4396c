"""What the barriers of an epoch have overtaken in one subtask: its flight, a part of its snapshot.

A restore takes it before all that is new. Another number of subtasks shares it out as the exchanges do that it came by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from onefold.core.checks import require
from onefold.engine.dataflow.chains import Exchange
from onefold.engine.key_groups import split_by_subtask
from onefold.flow.graph import Shipping

__all__ = ["OVERTAKING", "ByInput", "Flight", "share"]

ByInput = Mapping[int, Sequence[pa.RecordBatch]]  # of a chain's head

OVERTAKING = (Shipping.KEYED, Shipping.REBALANCE)  # of others a flight could not be shared out anew


@dataclass(slots=True)
class Flight:
    """Batches in their order, with the channels that they came by; `open` are those whose barrier has still to come:
    until then what comes there belongs to it."""

    batches: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    bytes: int = 0

    def add(self, channel: int, batch: pa.RecordBatch) -> None:
        self.batches.append((channel, batch))
        self.bytes += batch.nbytes

    def by_input(self, inputs: Sequence[int]) -> ByInput:
        """`inputs` are those of the channels."""
        found: dict[int, list[pa.RecordBatch]] = {}
        for channel, batch in self.batches:
            found.setdefault(inputs[channel], []).append(batch)
        return found


def share(
    exchange: Exchange, batches: Iterable[pa.RecordBatch], index: int, parallelism: int, max_parallelism: int
) -> Iterator[pa.RecordBatch]:
    """Of the flights of all subtasks that an exchange led to, in any number, what subtask `index` of `parallelism`
    takes: the rows of its key groups, or its turn."""
    require(exchange.edge.shipping in OVERTAKING, exchange.edge.shipping)
    for turn, batch in enumerate(batches):
        if exchange.edge.shipping is Shipping.REBALANCE:
            part = batch if turn % parallelism == index else batch.slice(0, 0)
        else:
            part = split_by_subtask(batch, exchange.edge.key, max_parallelism, parallelism)[index]
        if part.num_rows:
            yield part
