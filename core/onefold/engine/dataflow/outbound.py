"""The outputs of a subtask: which rows go to which subtask of the next chain."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from onefold.engine.dataflow.items import Barrier, Send
from onefold.engine.dataflow.plan import Chain, Exchange
from onefold.engine.key_groups import split_by_subtask
from onefold.flow.graph import Shipping

__all__ = ["Outbound"]


class Outbound:
    """Of subtask `index` among `parallelism`."""

    def __init__(self, chain: Chain, index: int, parallelism: int, max_parallelism: int) -> None:
        self._exchanges = chain.outputs
        self._index, self._parallelism, self._max_parallelism = index, parallelism, max_parallelism
        self._turn = index  # whose turn it is to get a batch that may go anywhere

    def batch(self, node: int, output: str | None, batch: pa.RecordBatch) -> Iterator[Send]:
        """What a node has emitted on an output."""
        for exchange in self._exchanges:
            if (exchange.edge.source, exchange.edge.output) == (node, output):
                for to, part in self._parts(exchange, batch):
                    yield Send(exchange.number, to, part)

    def barrier(self, barrier: Barrier) -> Iterator[Send]:
        """To every subtask that may have got batches from here."""
        for exchange in self._exchanges:
            for to in exchange.receivers(self._index, self._parallelism):
                yield Send(exchange.number, to, barrier)

    def _parts(self, exchange: Exchange, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        match exchange.edge.shipping:
            case Shipping.FORWARD:
                yield self._index, batch
            case Shipping.BROADCAST:
                for to in range(self._parallelism):
                    yield to, batch
            case Shipping.REBALANCE:
                self._turn = (self._turn + 1) % self._parallelism
                yield self._turn, batch
            case Shipping.KEYED if self._parallelism == 1:
                yield 0, batch
            case Shipping.KEYED:
                yield from enumerate(
                    split_by_subtask(batch, exchange.edge.key, self._max_parallelism, self._parallelism)
                )
