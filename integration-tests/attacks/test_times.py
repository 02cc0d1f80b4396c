"""Times that no calendar has: producers write them into values, and as the time of a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness.kafka.topics import in_order
from harness.support import Rig

from onefold.sources import KafkaSource
from onefold.sources.kafka import OffsetRange, close_consumers, read
from onefold.sources.kafka.formats.record_columns import RAW_COLUMNS

AT = {"type": "long", "logicalType": "timestamp-micros"}
SCHEMA = json.dumps(
    {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": AT}]}
)
LAST = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2**63 - 1, as Avro writes it


@pytest.mark.slow
@pytest.mark.attack(
    who="a producer",
    does="writes a timestamp of the year 294247, which no table takes",
    gets="a dead letter",
)
def test_a_time_beyond_all_calendars_stops_no_pipeline(rig: Rig) -> None:
    rig.put_values([b"\2\2", b"\4" + LAST, b"\6\2"], partitions=1)
    source = rig.source(format="avro", schema=None, avro_schema=SCHEMA, on_error="dead_letter")
    rig.run(rig.pipeline(source=source, dead_letters=rig.sink(table="letters")))
    assert [number for number, _ in rig.rows()] == [1, 3]
    assert rig.sql("SELECT source_offset, value FROM letters") == [(1, b"\4" + LAST)]


@pytest.mark.attack(
    who="a producer",
    does="gives a record a time of its own, 146 million years ahead",
    gets="a record whose `timestamp` is null",
)
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_a_records_own_time_stops_no_reader(
    kafka_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, compiled: str
) -> None:
    monkeypatch.setenv("ONEFOLD_COMPILED", compiled)
    topic = kafka_topic(partitions=1, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = in_order(kafka_server.bootstrap_servers)
    for number, at in enumerate([1000, 2**62, 2000]):
        producer.produce(topic, b"%d" % number, timestamp=at)
    assert producer.flush(30) == 0
    source = KafkaSource(topic, bootstrap_servers=kafka_server.bootstrap_servers)
    (batch,) = read(source, RAW_COLUMNS, OffsetRange(topic, 0, 0, 3))
    close_consumers()
    times = batch.column("timestamp").to_pylist()
    assert [at and at.timestamp() for at in times] == [1, None, 2]
