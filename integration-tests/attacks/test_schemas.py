"""What those who write records, register schemas, or stand in for the registry can do to whoever reads Avro."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from harness.kafka.topics import in_order
from harness.schema_registry import SchemaRegistry

from onefold.core.errors import BadRecord, ConfigError, Retriable
from onefold.core.source import Part
from onefold.sources import KafkaSource
from onefold.sources.formats.values import Unparsable
from onefold.sources.kafka import OffsetRange, close_consumers, read_parts
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.avro.schema_registry import Registry
from onefold.sources.kafka.formats.record_columns import added_columns

Json = Any
Topic = Callable[..., str]

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        server.register("orders", {"schema": json.dumps(ORDER)})
        yield server


@pytest.fixture
def read(kafka_server: Any, kafka_topic: Topic, registry: SchemaRegistry) -> Iterator[Callable[..., list[Part]]]:
    """Values between two good records, read as a pipeline with dead letters reads them."""

    def read(values: list[bytes], **more: Any) -> list[Part]:
        topic, good = kafka_topic(partitions=1), framed(1, b"\2")
        producer = in_order(kafka_server.bootstrap_servers)
        for value in [good, *values, good]:
            producer.produce(topic, value)
        assert producer.flush(30) == 0
        source = KafkaSource(
            topic,
            bootstrap_servers=kafka_server.bootstrap_servers,
            format="avro",
            schema_registry={"url": registry.url, "max.retries": "0"},
            avro_schema=json.dumps(ORDER),
            **{"on_error": "dead_letter", "columns": ["key", "headers", "timestamp", "position"], **more},
        )
        schema = pa.schema([*AvroSchema(source.avro_schema or "").arrow, *added_columns(source.columns)])
        return list(read_parts(source, schema, OffsetRange(topic, 0, 0, len(values) + 2)))

    yield read
    close_consumers()


def framed(number: int, value: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + value


def reasons(parts: list[Part]) -> list[str]:
    """Of the bad records, of which all but the first and the last are."""
    assert pa.Table.from_batches([part.rows for part in parts]).column("id").to_pylist() == [1, 1]
    return [letter["reason"] for part in parts for letter in part.bad.to_pylist()]


@pytest.mark.attack(
    who="a producer",
    does="writes records with ids of schemas that the registry lacks",
    gets="dead letters; the registry is asked once in half a minute for each",
)
def test_an_unknown_id_is_not_asked_for_with_every_record(read: Callable[..., Any], registry: SchemaRegistry) -> None:
    registry.asked.clear()
    found = reasons(read([framed(77 + number % 2, b"\2") for number in range(200)]))
    assert len(found) == 200
    assert found[0] == "the registry has no schema with the id 77"
    asked = [path for path in registry.asked if "/ids/77" in path or "/ids/78" in path]
    assert len(asked) == 2, asked
    assert "no schema's id" in reasons(read([framed(2**31, b"\2")]))[0]


def doubling(levels: int) -> Json:
    if not levels:
        return "long"
    fields = [{"name": "a", "type": doubling(levels - 1)}, {"name": "b", "type": f"A{levels - 1}"}]
    if levels == 1:
        fields[1]["type"] = "long"
    return {"type": "record", "name": f"A{levels}", "fields": fields}


def with_field(kind: Json) -> dict[str, str]:
    """ORDER with one more field, which nobody reads."""
    return {"schema": json.dumps({**ORDER, "fields": [*ORDER["fields"], {"name": "x", "type": kind}]})}


@pytest.mark.attack(
    who="a producer who may register schemas",
    does="registers 2 KB that stand for a million types, and writes records of it",
    gets="dead letters: a schema has bounds",
)
def test_a_schema_that_doubles_with_every_line_costs_its_records(
    read: Callable[..., Any], registry: SchemaRegistry
) -> None:
    number = registry.register("evil", with_field(["null", doubling(20)]))
    began_s = time.monotonic()
    found = reasons(read([framed(number, b"\2\0")] * 300))
    assert (len(found), {"more than 10000 types" in reason for reason in found}) == (300, {True})
    assert time.monotonic() - began_s < 5


@pytest.mark.attack(
    who="a producer who may register schemas",
    does="writes ten bytes that are a list of a hundred million nulls",
    gets="dead letters: items that take no bytes are refused",
)
def test_ten_bytes_of_a_list_take_no_gigabytes(read: Callable[..., Any], registry: SchemaRegistry) -> None:
    number = registry.register("evil", with_field({"type": "array", "items": "null"}))
    assert "items that take no bytes" in reasons(read([framed(number, b"\2\x80\x88\xde\xbe\x01\0")]))[0]


@pytest.mark.attack(
    who="a producer who may register schemas",
    does="registers what is no Avro schema, no JSON, nested without end, or refers to itself",
    gets="dead letters",
)
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"schema": "{"}, "is no Avro schema"),
        ({"schema": '{"type":"array","items":' * 20_000}, "levels deep"),
        ({"schema": '{"type":"record"}'}, "is no Avro schema"),
        ({"schema": json.dumps({**ORDER, "__fastavro_parsed": True, "fields": 7})}, "is no Avro schema"),
        ({"schema": '"long"'}, "no record"),
        ({"schema": "x" * (5 << 20)}, "has more than"),
        (
            {"schema": '"o.Loop"', "references": [{"name": "o.Loop", "subject": "loop", "version": 1}]},
            "is no Avro schema",
        ),
    ],
)
def test_a_schema_that_is_none_costs_its_records(
    read: Callable[..., Any], registry: SchemaRegistry, schema: Json, said: str
) -> None:
    number = registry.register("loop", schema)
    assert said in reasons(read([framed(number, b"\2")] * 3))[0]


@pytest.mark.attack(
    who="a producer who may register schemas",
    does="has a schema refer to a thousand others",
    gets="dead letters: a hundred are followed",
)
def test_references_are_followed_so_far(read: Callable[..., Any], registry: SchemaRegistry) -> None:
    for level in range(200):
        refers = [{"name": f"o.R{level - 1}", "subject": f"r{level - 1}", "version": 1}] * 2 if level else []
        text = json.dumps({"type": "record", "name": f"o.R{level}", "fields": [{"name": "id", "type": "long"}]})
        number = registry.register(f"r{level}", {"schema": text, "references": refers})
    registry.asked.clear()
    assert "refers to more than 100 others" in reasons(read([framed(number, b"\2")]))[0]
    assert len(registry.asked) <= 110


@pytest.mark.attack(
    who="a producer",
    does="writes the id of a schema that the pipeline has no right to read",
    gets="a dead letter, and no ConfigError",
)
def test_an_id_that_the_registry_keeps_from_us_is_a_bad_record(
    read: Callable[..., Any], registry: SchemaRegistry
) -> None:
    registry.refused.add("/schemas/ids/9")
    assert "the registry refuses the schema with the id 9" in reasons(read([framed(9, b"\2")]))[0]
    with raises(BadRecord, "record-unreadable"):
        read([framed(9, b"\2")], on_error="fail")


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1 << 10):
        handler.wfile.write(b" " * (1 << 20))


def _compressed(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    handler.wfile.write(b"\x1f\x8b")


def _drop_by_drop(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        time.sleep(0.1)


def _nested(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b'{"schema":' + b"[" * 100_000)


@pytest.mark.attack(
    who="whoever answers for the registry",
    does="answers without end, compressed, a byte at a time, nested 100,000 deep",
    gets="Retriable or a bad record within seconds, and 4 MB of memory",
)
@pytest.mark.parametrize(
    ("how", "error"),
    [(_endless, Unparsable), (_compressed, Retriable), (_drop_by_drop, Retriable), (_nested, Retriable)],
)
def test_an_answer_is_read_up_to_a_size_and_for_a_time(how: Any, error: type[Exception]) -> None:
    with SchemaRegistry(how=how) as server:
        began_s = time.monotonic()
        with pytest.raises(error):
            Registry({"url": server.url, "max.retries": "0"}, 1.0).writer(1)
        assert time.monotonic() - began_s < 4


@pytest.mark.attack(
    who="whoever answers for the registry",
    does="redirects to another place",
    gets="ConfigError: nothing is asked there, and no password goes there",
)
def test_a_redirect_is_not_followed(registry: SchemaRegistry) -> None:
    def how(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"{registry.url}/schemas/ids/1")
        handler.end_headers()

    with SchemaRegistry(how=how) as server:
        with raises(ConfigError, "registry-redirects"):
            Registry({"url": server.url.replace("//", "//user:word@")}, 5.0).writer(1)
        assert registry.asked == []
        with raises(ConfigError, "registry-redirects"):
            Registry({"url": server.url, "basic.auth.user.info": "user:word"}, 5.0).latest("orders")
        assert registry.asked == []
