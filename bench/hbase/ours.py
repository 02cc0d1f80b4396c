"""The HBase sink's modes: Arrow batches in, and the whole protocol, with one writer in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.epochs import Epochs, new_store
from bench.hbase.place import KEY, SCHEMA, Place, Spent
from onefold.clients.hbase import Cells, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import Committable, TaskId
from onefold.sinks import HBaseSink

__all__ = ["get_alone", "incremental", "put_alone", "rolling", "row_key"]

COLUMNS = {"amount": "f:amount integer", "note": "f:note string"}
MERGE = {"amount": "sum", "note": "max"}


class Here:
    """The writer of each epoch is in this process."""

    def __init__(self, sink: HBaseSink, epochs: Sequence[Sequence[pa.RecordBatch]]) -> None:
        self._sink, self._epochs = sink, iter(epochs)
        self._left: list[Committable | None] = []

    def go(self, order: TaskId) -> None:
        writer = self._sink.writer(order)
        for batch in next(self._epochs):
            writer.write(batch)
        self._left = [writer.prepare()]

    def answers(self) -> list[Any]:
        return self._left


def put_alone(place: Place) -> Spent:
    """HBaseTable.put of rows that are encoded beforehand: what the sinks write with."""
    rows = _encoded(place.batches(place.rows, place.rows))
    with place.table(place.rows) as name:
        table = HBaseTable(place.settings, name)
        with place.clock(place.rows) as spent:
            for keys, cells in rows:
                table.put(keys, cells, 1)
        place.check(name, place.rows)
    return spent


def get_alone(place: Place) -> Spent:
    rows = _encoded(place.batches(place.rows, place.rows))
    with place.table(place.rows) as name:
        table = HBaseTable(place.settings, name)
        for keys, cells in rows:
            table.put(keys, cells, 1)
        with place.clock(place.rows) as spent:
            for keys, cells in rows:
                if table.get(keys, [(c.family, c.qualifier) for c in cells]) != [c.values for c in cells]:
                    raise RuntimeError("other values came back")
    return spent


def row_key(place: Place, epochs: int = 1) -> Spent:
    return _run(place, place.rows, place.rows, epochs, {"mode": "row_key"}, ["id", "amount", "note"])


def rolling(place: Place, per_key: int, epochs: int = 1) -> Spent:
    """Sums and maxima. From the second epoch on, the rows are there."""
    keys = place.rows // per_key
    return _run(place, place.rows, keys, epochs, {"mode": "rolling", "merge": MERGE}, ["id", "amount", "note"])


def incremental(place: Place, per_key: int, epochs: int = 1) -> Spent:
    """The same of messages with ids, by conditional writes."""
    rows = place.one_by_one * 10
    options = {"mode": "incremental", "merge": MERGE, "sequence": "number"}
    return _run(place, rows, rows // per_key, epochs, options, SCHEMA.names)


def _run(place: Place, rows: int, keys: int, epochs: int, options: dict[str, Any], columns: Sequence[str]) -> Spent:
    whole = pa.Table.from_batches(place.batches(rows, keys)).select(columns)
    parts = [whole[rows * at // epochs : rows * (at + 1) // epochs].to_batches() for at in range(epochs)]
    total = pc.sum(whole["amount"]).as_py()
    with place.table(keys) as table, new_store(place.directory) as store:
        sink = HBaseSink(place.settings, table, row_key=KEY, columns=COLUMNS, **options)
        started = Epochs(sink, table, store, whole.schema)
        team = Here(sink, parts)
        with place.clock(rows) as spent:
            for _ in range(epochs):
                started.run(team)
        started.close()
        place.check(table, keys, total)
    return spent


def _encoded(batches: Sequence[pa.RecordBatch]) -> list[tuple[pa.BinaryArray, list[Cells]]]:
    mapping = TableMapping.of("t", KEY, COLUMNS).bound(SCHEMA, without=("number",))
    return [(mapping.keys(batch), mapping.cells(batch)) for batch in batches]
