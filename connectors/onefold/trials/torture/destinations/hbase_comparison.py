"""Compares the topic's orders with an HBase table: the newest row of each order, or the totals of each account."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import pyarrow as pa

from onefold.core import EpochRecord
from onefold.core.invariants import Comparison
from onefold.trials.torture.destinations.table_comparison import RecordId, Row, compare_rows
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import TOPIC

_AMOUNT, _AT = pa.decimal128(12, 2), pa.timestamp("us", "UTC")
_PLACE = [("kafka_partition", pa.int32()), ("kafka_offset", pa.int64())]
_TOTALS = [("total", _AMOUNT), ("largest", _AMOUNT), ("orders", pa.int64()), ("latest", _AT)]
ROWS = {  # as the table has them, the key first
    "row_key": pa.schema(
        [
            ("id", pa.int64()),
            ("version", pa.int64()),
            ("account", pa.int64()),
            ("amount", _AMOUNT),
            ("at", _AT),
            *_PLACE,
        ]
    ),
    "rolling": pa.schema([("account", pa.int64()), *_TOTALS]),
    "incremental": pa.schema([("account", pa.int64()), ("kafka_partition", pa.int32()), *_TOTALS]),
}


def compare_newest_of_epochs(
    epochs: Iterable[EpochRecord], orders: Mapping[RecordId, MixedOrder], actual: Mapping[Hashable, list[Row]]
) -> Comparison:
    """The last epoch that has an order says what its row is: the highest version that is in that epoch, and of equal
    versions the one that is last in the source; unless it is a deletion."""
    expected: dict[Hashable, list[Row]] = {}
    for epoch in epochs:
        for (partition, offset), order in _highest(epoch, orders).items():
            row = (order.id, order.version, order.account, order.amount, order.at, partition, offset)
            expected[order.id] = [] if order.is_deletion else [row]
    return compare_rows({key: rows for key, rows in expected.items() if rows}, actual)


def _highest(epoch: EpochRecord, orders: Mapping[RecordId, MixedOrder]) -> dict[RecordId, MixedOrder]:
    start = dict(epoch.range.start.items)
    highest: dict[int, tuple[int, RecordId]] = {}
    for name, end in epoch.range.end.items:
        partition = int(name.removeprefix(f"{TOPIC}/"))
        for offset in range(int(start.get(name, 0)), int(end)):
            order = orders.get((partition, offset))
            if order is not None:
                rank = order.version, (partition, offset)
                highest[order.id] = max(highest.get(order.id, rank), rank)
    return {place: orders[place] for _, place in highest.values()}


def compare_totals(
    orders: Mapping[RecordId, MixedOrder], actual: Mapping[Hashable, list[Row]], *, by_partition: bool
) -> Comparison:
    """What all orders of an account come to; with `by_partition`, all of its orders in one partition of the source."""
    of: dict[tuple[int | None, ...], list[MixedOrder]] = {}
    for (partition, _), order in orders.items():
        of.setdefault((order.account, partition) if by_partition else (order.account,), []).append(order)
    expected: dict[Hashable, list[Row]] = {}
    for key, theirs in of.items():
        amounts = [order.amount for order in theirs]
        row = (*key, sum(amounts), max(amounts), len(theirs), max(order.at for order in theirs))
        expected.setdefault(key[0], []).append(row)
    return compare_rows(expected, actual)
