"""What a topic must have of the source's orders: each once, under its key, in its partition, in order."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from onefold.core.invariants import Comparison
from onefold.spark.verify.kafka_records import javas_partition
from onefold.trials.torture.audit import Audit
from onefold.trials.torture.destinations.destination import Compared, DueRecords
from onefold.trials.torture.destinations.kafka_comparison import compare_letters, compare_sales
from onefold.trials.torture.destinations.kafka_reading import TopicRecord
from onefold.trials.workload.mixed import MixedOrder

AT = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 3
ORDERS = {
    (partition, offset): MixedOrder(10 * partition + offset, 0, 7 + offset % 2, Decimal("1.50"), AT, False, "")
    for partition in (0, 1)
    for offset in range(4)
}
CUT = b'{"number":5,"id":'
DUE = DueRecords(ORDERS, {(1, 9): CUT})


def sale(partition: int, offset: int, at: int, *, keyed: bool = False, **more: object) -> TopicRecord:
    """The record of that order, as a sink would have written it at this offset."""
    order = ORDERS[partition, offset]
    value = {"id": order.id, "account": order.account, "amount": 1.5, "at": "2026-01-01T00:00:00.000000Z"}
    value |= {"kafka_topic": "orders", "kafka_partition": partition, "kafka_offset": offset, **more}
    key = str(order.account).encode()
    headers = (("id", f"orders/{partition}:{offset}".encode()),) if keyed else ()
    return TopicRecord(javas_partition(key, PARTITIONS), at, key, json.dumps(value).encode(), headers)


def whole(*, keyed: bool = False) -> list[TopicRecord]:
    return [sale(p, offset, at, keyed=keyed) for at, (p, offset) in enumerate(ORDERS)]


def judged(records: Sequence[TopicRecord], *, keyed: bool = False) -> tuple[dict[str, int], int]:
    found = compare_sales(DUE, records, PARTITIONS, keyed=keyed)
    return wrong(found), len(found.disorders)


def wrong(found: Compared) -> dict[str, int]:
    c = found.comparison
    counts = {"lost": c.lost, "duplicated": c.duplicated, "changed": c.changed, "unexpected": c.unexpected}
    return {kind: count for kind, count in counts.items() if count}


@pytest.mark.parametrize("keyed", [False, True])
def test_a_topic_with_each_order_once_in_order_is_right(keyed: bool) -> None:
    assert judged(whole(keyed=keyed), keyed=keyed) == ({}, 0)


def test_lost_doubled_changed_and_strange_records_are_told_apart() -> None:
    records = whole()
    assert judged(records[1:]) == ({"lost": 1}, 0)
    assert judged([*records, sale(1, 3, 99)]) == ({"duplicated": 1}, 0)
    assert judged([*records[:-1], sale(1, 3, 9, amount=1.51)]) == ({"changed": 1}, 0)
    assert judged([*records, sale(1, 3, 99, kafka_offset=7)]) == ({"unexpected": 1}, 0)


def test_a_wrong_key_or_partition_is_a_changed_record() -> None:
    *others, last = whole()
    assert judged([*others, replace(last, key=b"9")])[0] == {"changed": 1}
    assert judged([*others, replace(last, partition=(last.partition + 1) % PARTITIONS)])[0] == {"changed": 1}


def test_records_of_one_key_must_be_in_the_order_of_their_partition_of_the_source_and_others_need_not() -> None:
    assert judged([sale(*place, at) for at, place in enumerate(sorted(ORDERS, key=lambda p: (p[1], p[0])))]) == ({}, 0)
    turned = [sale(*place, at) for at, place in enumerate(reversed(ORDERS))]
    assert judged(turned) == ({}, 4), "of each of two keys, the second record of each of two partitions"


def test_a_keyed_record_may_come_again_the_same_but_not_with_other_content() -> None:
    records = whole(keyed=True)
    again = [replace(record, offset=record.offset + 100) for record in records[2:5]]
    assert judged([*records, *again], keyed=True) == ({}, 0)
    assert judged([*records, sale(0, 1, 99, keyed=True, amount=2)], keyed=True)[0] == {"duplicated": 1}
    assert judged([replace(records[0], headers=()), *records[1:]], keyed=True)[0] == {"changed": 1}


def letter(value: bytes = CUT, **more: object) -> TopicRecord:
    told = {"source_topic": "orders", "source_partition": 1, "source_offset": 9, "reason": "no JSON", **more}
    return TopicRecord(0, 0, None, json.dumps({**told, "value": base64.b64encode(value).decode()}).encode())


def test_what_cannot_be_read_is_a_dead_letter_once_byte_for_byte_with_a_reason() -> None:
    found = compare_letters(DUE, [letter()], keyed=False)
    assert (found.comparison.actual, found.comparison.dead, wrong(found)) == (0, 1, {})
    assert wrong(compare_letters(DUE, [], keyed=False)) == {"lost": 1}
    assert wrong(compare_letters(DUE, [letter(), letter()], keyed=False)) == {"duplicated": 1}
    assert wrong(compare_letters(DUE, [letter(), letter()], keyed=True)) == {}
    assert wrong(compare_letters(DUE, [letter(CUT + b"}")], keyed=False)) == {"changed": 1}
    assert wrong(compare_letters(DUE, [letter(reason="")], keyed=False)) == {"changed": 1}
    assert wrong(compare_letters(DUE, [letter(), letter(source_offset=8)], keyed=False)) == {"unexpected": 1}


def test_at_rest_a_record_that_nobody_decided_is_wrong_also_where_records_show_before_they_are_decided() -> None:
    def audit(unexpected: int) -> Audit:
        return Audit(1, 8, {"sales": Comparison(8, 8, 0, 0, 0, unexpected)}, 0, 0, 0, 0, {"no-loss": ()})

    assert audit(0).is_exact
    assert not audit(1).is_exact
