"""The outputs of a subtask: which rows go to which subtask of the next chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from onefold.engine.dataflow.chains import Chain, Exchange
from onefold.engine.dataflow.items import Barrier, Send
from onefold.engine.key_groups import split_by_subtask
from onefold.flow.graph.nodes import Shipping
from onefold.flow.time.clocks import NO_TIMES, Times

_TURN_ROWS = 8192


class Outbound:
    """Of subtask `index` among `parallelism`. `in_order`: what goes where depends on nothing before the epoch."""

    def __init__(
        self, chain: Chain, index: int, parallelism: int, max_parallelism: int, in_order: bool = False
    ) -> None:
        self._exchanges = chain.outputs
        self.receivers = [(each, to) for each in chain.outputs for to in each.receivers(index, parallelism)]
        self._index, self._parallelism, self._max_parallelism = index, parallelism, max_parallelism
        self._rebalanced = Counter[int]()  # rows, by their exchange
        self._in_order = in_order

    def batch(self, node: int, output: str | None, batch: pa.RecordBatch) -> Iterator[Send]:
        for exchange in self._exchanges:
            if (exchange.edge.source, exchange.edge.output) == (node, output):
                for to, part in self._parts(exchange, batch):
                    yield Send(exchange.number, to, part)

    def barrier(self, barrier: Barrier, times: Times = NO_TIMES) -> Iterator[Send]:
        """To every subtask that may have got batches from here, after what is known of the epoch's event time."""
        if self._in_order:
            self._rebalanced.clear()
        for exchange, to in self.receivers:
            if times:
                yield Send(exchange.number, to, times)
            yield Send(exchange.number, to, barrier)

    def _parts(self, exchange: Exchange, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        match exchange.edge.shipping:
            case Shipping.FORWARD:
                yield self._index, batch
            case Shipping.BROADCAST:
                for to in range(self._parallelism):
                    yield to, batch
            case Shipping.REBALANCE:
                yield from self._in_turn(exchange.number, batch)
            case Shipping.KEYED if self._parallelism == 1:
                yield 0, batch
            case Shipping.KEYED:
                yield from enumerate(
                    split_by_subtask(batch, exchange.edge.key, self._max_parallelism, self._parallelism)
                )

    def _in_turn(self, exchange: int, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """By the rows that went before, not by how they were batched: so the same rows go to the same subtask again."""
        at = 0
        while at < batch.num_rows:
            turn, into = divmod(self._rebalanced[exchange], _TURN_ROWS)
            part = batch.slice(at, _TURN_ROWS - into)
            yield (self._index + turn) % self._parallelism, part
            at += part.num_rows
            self._rebalanced[exchange] += part.num_rows
