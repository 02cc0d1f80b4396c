"""Compares the source's records with the topics that were written: which records, how often, in which order."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from onefold.core.invariants import SAMPLES_MAX, Comparison
from onefold.spark.verify.kafka_records import javas_partition
from onefold.trials.torture.destinations.destination import Compared, DueRecords
from onefold.trials.torture.destinations.kafka_reading import TopicRecord
from onefold.trials.torture.destinations.table_comparison import RecordId, Row, compare_rows
from onefold.trials.workload.workload_settings import ID_HEADER, TOPIC


@dataclass(frozen=True, slots=True)
class _Sale:
    """A record of the topic of sales, and where in the source its order was."""

    place: RecordId
    row: Row
    written: TopicRecord


def compare_sales(due: DueRecords, records: Collection[TopicRecord], partitions: int, *, keyed: bool) -> Compared:
    """Each order is there once, under its account as the key, in the partition where Java's producers put that key.

    With `keyed` it has its id in a header, and may be there again, the same, and a reader drops what it has seen.
    """
    sales = [_sale(record) for record in (unseen(records, ID_HEADER) if keyed else records)]
    expected: dict[Hashable, list[Row]] = {}
    for (partition, offset), order in due.orders.items():
        key = str(order.account).encode()
        id_ = f"{TOPIC}/{partition}:{offset}".encode() if keyed else None
        row = (order.id, order.account, order.amount, order.at, key, javas_partition(key, partitions), id_)
        expected[_at((partition, offset))] = [row]
    actual: dict[Hashable, list[Row]] = {}
    for sale in sales:
        actual.setdefault(_at(sale.place), []).append(sale.row)
    return Compared(compare_rows(expected, actual), disorders(sales))


def compare_letters(due: DueRecords, records: Collection[TopicRecord], *, keyed: bool) -> Compared:
    """What no order can be read from is there once, byte for byte, with a reason, and nothing else is."""
    letters = unseen(records, None) if keyed else records
    expected: dict[Hashable, list[Row]] = {_at(place): [(value, True)] for place, value in due.unreadable.items()}
    actual: dict[Hashable, list[Row]] = {}
    for record in letters:
        letter = _json(record)
        place = letter["source_partition"], letter["source_offset"]
        row = base64.b64decode(letter["value"]), bool(letter["reason"]) and letter["source_topic"] == TOPIC
        actual.setdefault(_at(place), []).append(row)
    found = compare_rows(expected, actual)
    return Compared(
        Comparison(
            expected=found.expected,
            actual=0,
            dead=found.actual,
            lost=found.lost,
            duplicated=found.duplicated,
            changed=found.changed,
            unexpected=found.unexpected,
            samples=found.samples,
        )
    )


def unseen(records: Iterable[TopicRecord], header: str | None) -> list[TopicRecord]:
    """The first of each id, which is in that header, or the key. One that comes again with other content stays."""
    first: dict[tuple[Hashable, ...], TopicRecord] = {}
    for record in records:
        id_ = record.key if header is None else dict(record.headers).get(header)
        first.setdefault((id_, record.key, record.value, record.partition), record)
    return list(first.values())


def disorders(sales: Iterable[_Sale]) -> tuple[str, ...]:
    """Where records of one key and one partition of the source stand in another order than there."""
    last: dict[tuple[bytes | None, int, int], int] = {}
    found = []
    for sale in sales:
        partition, offset = sale.place
        of = (sale.written.key, sale.written.partition, partition)
        if offset < last.get(of, -1):
            found.append(
                f"offset {sale.written.offset} of partition {sale.written.partition}: {_at(sale.place)} stands behind "
                f"offset {last[of]}, under the key {sale.written.key!r}"
            )
        last[of] = max(offset, last.get(of, -1))
    more = len(found) - SAMPLES_MAX
    return tuple(found[:SAMPLES_MAX] + ([f"and {more} more"] if more > 0 else []))


def _sale(record: TopicRecord) -> _Sale:
    order = _json(record)
    id_ = dict(record.headers).get(ID_HEADER)
    row = (
        order["id"],
        order["account"],
        Decimal(order["amount"]),
        datetime.fromisoformat(order["at"]),
        record.key,
        record.partition,
        id_,
    )
    return _Sale((order["kafka_partition"], order["kafka_offset"]), row, record)


def _json(record: TopicRecord) -> Mapping[str, Any]:
    assert record.value is not None, f"offset {record.offset} of partition {record.partition} has no value"
    found: dict[str, Any] = json.loads(record.value, parse_float=Decimal)
    return found


def _at(place: RecordId) -> str:
    return f"{TOPIC}/{place[0]} offset {place[1]}"
