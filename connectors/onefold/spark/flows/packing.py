"""Record batches as rows of Spark: what one chain of operators sends to the next, whatever its columns.

A row is a batch for one subtask of a chain. Spark brings it there, and sees neither columns nor types: so all values
come out as they went in.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import reduce
from itertools import count
from operator import attrgetter

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.values.ddl import schema_of
from onefold.engine.dataflow.chain_operators import Emitted
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.dataflow.items import Send
from onefold.engine.dataflow.outbound import Outbound
from onefold.engine.workers.frames import decoded_item, encoded_item
from onefold.flow.graph.event_time import clocks_of
from onefold.flow.graph.operators import Querying, Writing
from onefold.flow.time.clocks import NO_TIMES, Times

PACKED_DDL = "chain string, subtask int, exchange int, sender int, number long, kind int, content binary"
PLACE = ("chain", "subtask")  # where a row goes: all of one place in one task
# Each sender's rows as it sent them: the same when an epoch runs again.
ORDER = (*PLACE, "exchange", "sender", "number")
# Exchanges of rows that have no batch, but say: how many records the sender, a node, could not read, as their number;
# what the records that the sender has read say of event time; where the watermark of the sender, a node, is; or how
# many rows and bytes have passed by streams.
BAD, TIMES, CLOCK, PASSED = -1, -2, -3, -4
_SCHEMA = schema_of(PACKED_DDL)
_BYTES_MAX = 4 << 20


def levels(plan: Plan) -> list[list[Chain]]:
    """The chains of each level but the last ones. A chain comes one level after the last of those that feed it."""
    level_of: dict[int, int] = {}
    found: list[list[Chain]] = []
    for chain in plan.chains:
        if isinstance(chain.head.operator, Querying | Writing):
            continue
        before = [level_of[plan.chain_of(exchange.edge.source).number] for exchange in chain.inputs]
        level_of[chain.number] = level = 1 + max(before, default=-1)
        if level == len(found):
            found.append([])
        found[level].append(chain)
    return found


def last_chains(plan: Plan) -> list[Chain]:
    """Those of the sinks; where Spark makes what these get, its own."""
    kind = Writing if plan.graph.querying() is None else Querying
    return [chain for chain in plan.chains if isinstance(chain.head.operator, kind)]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One row. `number` counts what a sender has sent in an epoch."""

    chain: str
    subtask: int
    exchange: int
    sender: int
    number: int
    kind: int = 0
    content: bytes = b""

    @property
    def place(self) -> tuple[str, int]:
        return self.chain, self.subtask


class Packer:
    """Packs what subtask `index` of a chain emits. Spark runs as many subtasks of a chain as there are key groups; of
    the chain that reads, as many as the epoch's ranges have tasks."""

    def __init__(self, plan: Plan, chain: Chain, index: int) -> None:
        groups = plan.graph.max_parallelism
        self._plan, self._index = plan, index
        self._outbound = Outbound(chain, index, groups, groups)
        self._numbers = count()

    def pack(self, emitted: Iterable[Emitted]) -> Iterator[PackedRow]:
        for node, output, batch in emitted:
            for send in self._outbound.batch(node, output, batch):
                yield from self._packed(send)

    def _packed(self, send: Send) -> Iterator[PackedRow]:
        assert isinstance(send.item, pa.RecordBatch)
        chain = name_of(self._plan.chain_of(self._plan.exchanges[send.exchange].target))
        rows = send.item.num_rows
        step = max(1, rows * _BYTES_MAX // max(send.item.nbytes, _BYTES_MAX))
        for at in range(0, rows, step):
            kind, content = encoded_item(send.item.slice(at, step))
            number = next(self._numbers)
            yield PackedRow(chain, send.to, send.exchange, self._index, number, kind, content.to_pybytes())


def packed_times(plan: Plan, node: int, index: int, times: Times) -> Iterator[PackedRow]:
    """What subtask `index` of those that read a node says of event time, to all key groups of each operator that goes
    by it: they keep clocks of their own, and have them all alike."""
    uid = present(plan.graph.nodes[node].uid, "a source has a uid")
    kind, content = encoded_item(times)
    for chain in plan.chains:
        if chain.head.keeps_event_time and uid in clocks_of(plan.graph.nodes, chain.head.inputs):
            is_keyed = any(exchange.edge.key for exchange in chain.inputs)
            for group in range(plan.graph.max_parallelism if is_keyed else 1):
                yield PackedRow(name_of(chain), group, TIMES, index, node, kind, bytes(content))


def passed_row(passed: Counter[int]) -> PackedRow:
    """What `Operators.passed` gives, all in one place: a turn of Spark's for each key group would be dear."""
    return PackedRow("", 0, PASSED, 0, 0, 0, pickle.dumps(passed))


def times_of(rows: Iterable[PackedRow]) -> Times:
    """All that rows of `TIMES` say."""
    return reduce(Times.joined, (pickle.loads(row.content) for row in rows), NO_TIMES)


def name_of(chain: Chain) -> str:
    """What rows name it by: where it keeps state, that stays when the flow changes around it."""
    return chain.uid or f"#{chain.number}"


def unpacked(plan: Plan, row: PackedRow) -> pa.RecordBatch:
    found = decoded_item((row.kind, row.content), plan.exchanges[row.exchange].schema)
    assert isinstance(found, pa.RecordBatch)
    return found


def in_order(rows: Iterable[PackedRow]) -> list[PackedRow]:
    """By `ORDER`."""
    return sorted(rows, key=attrgetter(*ORDER))


def packed_batch(rows: Iterable[PackedRow]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(_SCHEMA.names, astuple(row), strict=True)) for row in rows], _SCHEMA)


def packed_rows(batch: pa.RecordBatch) -> Iterator[PackedRow]:
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield PackedRow(*row)
