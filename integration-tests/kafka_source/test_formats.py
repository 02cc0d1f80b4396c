"""Formats of the Kafka source on a real broker, Avro with a schema registry that speaks the real one's API."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from harness.errors import raises
from harness.kafka.topics import in_order
from harness.schema_registry import SchemaRegistry
from harness.support import Rig

from onefold.core.errors import BadRecord, ConfigError, Retriable
from onefold.sources import KafkaSource
from onefold.sources.kafka import OffsetRange, check_schema, find_schema, read, read_parts, record_ddl
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.record_columns import added_columns

pytestmark = pytest.mark.servers

Topic = Callable[..., str]
AT = dt.datetime(2026, 1, 1, 12, 0, 0, 123000, dt.UTC)
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}


@pytest.fixture
def servers(kafka_server: Any) -> str:
    return str(kafka_server.bootstrap_servers)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


def produce(servers: str, topic: str, values: list[bytes | None], **more: Any) -> None:
    producer = in_order(servers)
    for value in values:
        producer.produce(topic, value, partition=0, **more)
    assert producer.flush(20) == 0


def serialized(
    registry: SchemaRegistry, topic: str, schema: dict[str, Any], *rows: dict[str, Any]
) -> list[bytes | None]:
    """As Confluent's own serializer writes them."""
    client = SchemaRegistryClient({"url": registry.url, "timeout": 10})
    serializer = AvroSerializer(client, json.dumps(schema))
    return [serializer(row, SerializationContext(topic, MessageField.VALUE)) for row in rows]


def rows(source: KafkaSource, end: int) -> list[dict[str, Any]]:
    schema = arrow_of(source)
    check_schema(source, schema)
    wanted = OffsetRange(source.topics[0], 0, 0, end)
    return [row for batch in read(source, schema, wanted) for row in batch.to_pylist()]


def arrow_of(source: KafkaSource) -> pa.Schema:
    parsed = {
        "avro": lambda: AvroSchema(source.avro_schema or "").arrow,
        "csv": lambda: pa.schema({"n": pa.int64(), "s": pa.string()}),
        "string": lambda: pa.schema({"value": pa.string()}),
    }
    return pa.schema([*parsed[source.format](), *added_columns(source.columns)])


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "amount": Decimal("12.34"), "at": AT, **more}


def test_what_confluents_serializer_wrote_in_two_versions_is_read_as_one_schema(
    servers: str, kafka_topic: Topic, registry: SchemaRegistry
) -> None:
    topic = kafka_topic(partitions=1)
    values = serialized(registry, topic, ORDER, *(order(i) for i in range(50)))
    values += serialized(registry, topic, NEWER, *(order(i, note="new") for i in range(50, 80)))
    values = [value for pair in zip(values[:30], values[50:], strict=True) for value in pair] + values[30:50]
    produce(servers, topic, values)
    source = KafkaSource(topic, bootstrap_servers=servers, format="avro", schema_registry=registry.url)
    registry.asked.clear()
    newest = source.with_schema(find_schema(source))
    found = rows(newest, 80)
    assert record_ddl(newest) == "id bigint, amount decimal(12,2), at timestamp, note string"
    assert {row["id"]: row["note"] for row in found} == {i: "new" if i >= 50 else None for i in range(80)}
    assert [row["id"] for row in found[:4]] == [0, 50, 1, 51]
    assert {(row["amount"], row["at"]) for row in found} == {(Decimal("12.34"), AT)}
    older = KafkaSource(
        topic, bootstrap_servers=servers, format="avro", schema_registry=registry.url, avro_schema=json.dumps(ORDER)
    )
    assert rows(older, 80) == [{k: v for k, v in row.items() if k != "note"} for row in found]
    assert sum("/schemas/ids/" in asked for asked in registry.asked) == 2, "each id is asked for once"


def test_a_schema_that_refers_to_others_is_read(servers: str, kafka_topic: Topic, registry: SchemaRegistry) -> None:
    topic = kafka_topic(partitions=1)
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    whole = {"type": "record", "name": "Sale", "namespace": "shop", "fields": [{"name": "m", "type": "shop.Money"}]}
    registry.register("money", {"schema": json.dumps(money)})
    client = SchemaRegistryClient({"url": registry.url, "timeout": 10})
    schema = Schema(json.dumps(whole), "AVRO", [SchemaReference("shop.Money", "money", 1)])
    value = AvroSerializer(client, schema)({"m": {"cents": 5}}, SerializationContext(topic, MessageField.VALUE))
    produce(servers, topic, [value])
    read_as = {**whole, "fields": [{"name": "m", "type": money}]}
    source = KafkaSource(
        topic, bootstrap_servers=servers, format="avro", schema_registry=registry.url, avro_schema=json.dumps(read_as)
    )
    assert rows(source, 1) == [{"m": {"cents": 5}}]
    with raises(ConfigError, "registry-schema-in-parts"):
        find_schema(KafkaSource(topic, bootstrap_servers=servers, format="avro", schema_registry=registry.url))


def test_values_without_framing_of_unknown_ids_and_of_no_record_are_bad_and_cost_themselves_alone(
    servers: str, kafka_topic: Topic, registry: SchemaRegistry
) -> None:
    topic = kafka_topic(partitions=1)
    good = serialized(registry, topic, ORDER, *(order(i) for i in range(10)))
    bad: list[bytes | None] = [None, b"{}", b"\0\0\0\0\x63abc", b"\0\0\0", b"\0\0\0\0\x01\x02"]
    produce(servers, topic, [*good[:5], *bad, *good[5:]])
    source = KafkaSource(
        topic,
        bootstrap_servers=servers,
        format="avro",
        schema_registry={"url": registry.url},
        avro_schema=json.dumps(ORDER),
        on_error="dead_letter",
        columns=["key", "headers", "timestamp", "position"],
    )
    wanted = OffsetRange(topic, 0, 0, 15)
    (part,) = read_parts(source, arrow_of(source), wanted)
    assert part.rows.column("id").to_pylist() == list(range(10))
    assert part.rows.column("kafka_offset").to_pylist() == [*range(5), *range(10, 15)]
    letters = part.bad.to_pylist()
    assert [(letter["source_offset"], letter["value"]) for letter in letters] == list(enumerate(bad, 5))
    for letter, said in zip(
        letters, ["tombstone", "a zero", "no schema with the id 99", "a zero", "record"], strict=True
    ):
        assert said in letter["reason"]
    with raises(BadRecord, "record-verdict-unstable"):
        list(read_parts(source, arrow_of(source), wanted, repeatable=True))
    with raises(BadRecord, "record-verdict-unstable"):
        list(read(source, arrow_of(source), wanted))  # as Spark reads what it passes on


def test_a_registry_that_fails_refuses_or_is_away_is_told_apart(
    servers: str, kafka_topic: Topic, registry: SchemaRegistry
) -> None:
    topic = kafka_topic(partitions=1)

    def source(url: str) -> KafkaSource:
        return KafkaSource(
            topic, bootstrap_servers=servers, format="avro", schema_registry={"url": url, "max.retries": "0"}
        )

    registry.answer_with = 500
    with raises(Retriable, "registry-failed"):
        find_schema(source(registry.url))
    registry.answer_with = 401
    with raises(ConfigError, "registry-refused"):
        find_schema(source(registry.url))
    registry.answer_with = None
    with raises(ConfigError, "registry-subject-missing", f"{topic}"):
        find_schema(source(registry.url))
    with raises(Retriable, "registry-unreachable"):
        find_schema(source("http://127.0.0.1:1"))


def test_keys_headers_timestamps_and_positions_come_along_in_every_format(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    more = {"key": b"k", "headers": [("h", b"\x01"), ("h", None)], "timestamp": 1_700_000_000_123}
    produce(servers, topic, [b"1,x", b"2;y"], **more)
    formats = {"string": {}, "csv": {"schema": "n long, s string", "on_error": "skip"}}
    for name, settings in formats.items():
        source = KafkaSource(
            topic,
            bootstrap_servers=servers,
            format=name,
            columns=["position", "key", "headers", "timestamp"],
            **settings,  # type: ignore[arg-type]  # texts for whatever a format may be told
        )
        found = rows(source, 2)
        assert found[0] | {"n": 1, "s": "x", "value": "1,x"} == {
            "n": 1,
            "s": "x",
            "value": "1,x",
            "kafka_key": b"k",
            "kafka_headers": [{"key": "h", "value": b"\x01"}, {"key": "h", "value": None}],
            "kafka_timestamp": dt.datetime.fromtimestamp(1_700_000_000.123, dt.UTC),
            "kafka_topic": topic,
            "kafka_partition": 0,
            "kafka_offset": 0,
        }
        assert len(found) == (2 if name == "string" else 1)


@pytest.mark.slow
def test_an_inferred_schema_that_has_changed_is_refused_and_a_plain_stream_is_told_to_paste_it(rig: Rig) -> None:
    rig.put(40)
    source = rig.source(schema="infer")
    rig.run(rig.pipeline(source=source))
    rig.put_values([b'{"id":%d,"n":%d,"more":"x"}' % (i, i) for i in range(40, 60)])
    rig.sent += [(i, i) for i in range(40, 60)]
    assert find_schema(source) == "id bigint, n bigint, more string"
    with raises(ConfigError, "source-schema-changed", "give the source its schema"):
        rig.run(rig.pipeline(source=source))
    rig.run(rig.pipeline(source=rig.source(schema="id bigint, n bigint")))
    rig.assert_exact()
    options = rig.spark.read.format("onefold_kafka").options(**source.options(), endingOffsets="latest")
    assert options.load().columns == ["id", "n", "more"]
    df = rig.spark.readStream.format("onefold_kafka").options(**source.options()).load()
    with pytest.raises(Exception, match="give it yourself: schema='id bigint, n bigint, more string'"):
        df.writeStream.format("noop").option("checkpointLocation", rig.checkpoint("noop")).start().awaitTermination(60)
