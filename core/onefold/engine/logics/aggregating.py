"""Keeps aggregates a key: of a batch, of the epoch, and of all before, merged by Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from onefold.core.aggregates import Aggregate
from onefold.core.aggregates.accumulation import Accumulation
from onefold.core.checks import present
from onefold.core.contract import TaskId
from onefold.engine.logics.logic import Input, Output
from onefold.engine.state.state_backend import Key, StateKind, StateSpec, StateTables
from onefold.flow.graph import Node
from onefold.flow.rows import values_of

__all__ = ["AggregatingLogic"]

PENDING_ROWS_MAX = 200_000


class AggregatingLogic:
    """Merges each epoch's states into those that are kept, once, and emits the results of the keys that changed."""

    def __init__(
        self,
        node: Node,
        given: pa.Schema,
        aggregates: Sequence[tuple[str, Aggregate]],
        key: tuple[str, ...],
        backend: StateTables,
    ) -> None:
        uid = present(node.uid, f"{node.name} keeps state")
        self._accumulation = Accumulation(given, key, aggregates)
        self._width = len(key)
        self._table = backend.table(StateSpec(uid, "aggregates", StateKind.VALUE))
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        self._pending.append(self._accumulation.states(batch))
        self._pending_rows += self._pending[-1].num_rows
        if self._pending_rows > PENDING_ROWS_MAX and len(self._pending) > 1:
            self._pending = [self._accumulation.merged(self._pending)]
            self._pending_rows = 0
        return ()

    def flush(self, task: TaskId) -> Iterator[Output]:
        del task
        if not self._pending:
            return
        states = self._accumulation.merged(self._pending)
        self._pending, self._pending_rows = [], 0
        keys = self._keys(states)
        kept = [(key, value) for key, value in zip(keys, self._table.get_many(keys), strict=True) if value is not None]
        if kept:
            columns = zip(*((*key, *value) for key, value in kept), strict=True)
            arrays = [pa.array(of, field.type) for of, field in zip(columns, states.schema, strict=True)]
            earlier = pa.RecordBatch.from_arrays(arrays, schema=states.schema)
            states = self._accumulation.merged([earlier, states])
            keys = self._keys(states)
        self._table.put_many(keys, [*values_of(states.select(range(self._width, states.num_columns)))])
        yield None, self._accumulation.results(states)

    def close(self) -> None:
        return

    def _keys(self, states: pa.RecordBatch) -> list[Key]:
        return [*values_of(states.select(range(self._width)))]
