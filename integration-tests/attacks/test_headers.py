"""What a record's headers can do."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from harness.kafka.record_batches import put_batch
from kafka import KafkaProducer

from onefold.core.errors import BadRecord
from onefold.sources import KafkaSource
from onefold.sources.kafka import RAW_COLUMNS, OffsetRange, close_consumers, read_parts
from onefold.sources.kafka.fetching.consumer import MessageConsumer
from onefold.sources.kafka.fetching.fetched_records import HEADER_BYTES
from onefold.sources.kafka.formats.record_columns import added_columns


class Name(str):
    """A header's name of whatever bytes."""

    def encode(self, *_: str) -> bytes:
        return b"a\xff"


@pytest.fixture
def read(
    kafka_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[list[Any], list[Any]]]]:
    """Five records, of which 1 and 3 have such a header, and 2 and 3 such a value."""
    topic = kafka_topic(partitions=1)
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap_servers)
    for number, value in enumerate([b'{"id":0}', b'{"id":1}', b"2", b"3", b'{"id":4}']):
        producer.send(topic, value, partition=0, headers=[(Name("a?"), b"2")] if number in (1, 3) else [("b", b"1")])
    producer.close()
    monkeypatch.setenv("ONEFOLD_COMPILED", "off")

    def read(**more: Any) -> tuple[list[Any], list[Any]]:
        servers = kafka_server.bootstrap_servers
        source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema="id long", **more)
        schema = pa.schema([pa.field("id", pa.int64()), *added_columns(source.columns)])
        parts = list(read_parts(source, schema, OffsetRange(topic, 0, 0, 5)))
        return [row for part in parts for row in part.rows.to_pylist()], [b for p in parts for b in p.bad.to_pylist()]

    yield read
    close_consumers()


@pytest.mark.attack(
    who="a producer",
    does="gives records headers whose names are not UTF-8, where the compiled helper is not there",
    gets="dead letters where headers are asked for, and rows where they are not",
)
def test_a_headers_name_stops_no_reader(read: Callable[..., tuple[list[Any], list[Any]]]) -> None:
    rows, bad = read(on_error="dead_letter")
    assert [row["id"] for row in rows] == [0, 1, 4]
    assert [(b["source_offset"], b["value"], b["headers"] is None) for b in bad] == [(2, b"2", False), (3, b"3", True)]
    rows, bad = read(on_error="dead_letter", columns=["headers"])
    assert [(row["id"], row["kafka_headers"]) for row in rows] == [(n, [{"key": "b", "value": b"1"}]) for n in (0, 4)]
    assert [(b["source_offset"], "not UTF-8" in b["reason"]) for b in bad] == [(1, True), (2, False), (3, True)]
    with raises(BadRecord, "record-unreadable"):
        read(columns=["headers"])
    for allowed, beyond in ((0, 1), (1, 2), (2, 3)):
        with raises(BadRecord, "too-many-bad-records", f"{allowed}", f"{beyond}"):
            read(on_error="skip", columns=["headers"], bad_records_max=allowed)


READ = """
import re, sys
import pyarrow as pa
from onefold.sources import KafkaSource
from onefold.sources.kafka import RAW_COLUMNS, OffsetRange, read_parts
servers, topic, compiled, end, kind = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5]
how = {"format": "raw"} if kind == "raw" else {"format": "json", "schema": "id long", "on_error": kind}
source = KafkaSource(topic, bootstrap_servers=servers, compiled_fetch=compiled, **how)
schema = RAW_COLUMNS if kind == "raw" else pa.schema([("id", pa.int64())])
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
def read(start, end):
    return sum(part.rows.num_rows for part in read_parts(source, schema, OffsetRange(topic, 0, start, end)))
assert read(0, 1) == 1
before = most()
assert read(1, end) == end - 1
print(most() - before)
"""
HEADERS_MAX = 100_000  # that librdkafka reads of a record


@pytest.mark.slow
@pytest.mark.attack(
    who="a producer",
    does="writes 13 KB that unpack to 60 records of 100,000 empty headers",
    gets="records, in batches that are smaller for each header; of memory, some batches'",
)
@pytest.mark.parametrize("kind", ["raw", "dead_letter", "fail"])
@pytest.mark.parametrize("compiled", ["required", "off"])
def test_empty_headers_take_no_gigabytes(
    kafka_server: Any, kafka_topic: Callable[..., str], compiled: str, kind: str
) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=1)
    put_batch(servers, topic, [(b'{"id":0}', 0)])
    put_batch(servers, topic, [(b'{"id":1}', HEADERS_MAX)] * 60)
    reading = [sys.executable, "-c", READ, servers, topic, compiled, "61", kind]
    done = subprocess.run(reading, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    mib = float(done.stdout)
    assert mib < (400 if compiled == "required" else 1000), f"{mib} MiB for 6,000,000 headers"


@pytest.mark.attack(
    who="a producer",
    does="gives a record more headers than librdkafka reads, 100,001",
    gets="a dead letter where headers are asked for, and a row where they are not; without the compiled helper a row,"
    " and a warning that says so",
)
def test_a_record_of_more_headers_than_can_be_read_is_never_one_of_none_without_a_word(
    kafka_server: Any,
    kafka_topic: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=1)
    put_batch(servers, topic, [(b'{"id":0}', 1), (b'{"id":1}', HEADERS_MAX + 1), (b"2", HEADERS_MAX + 1)])
    settings = {"bootstrap_servers": servers, "format": "json", "schema": "id long"}

    def read(compiled: Any, **more: Any) -> tuple[list[Any], list[Any]]:
        source = KafkaSource(topic, compiled_fetch=compiled, **settings, **more)
        schema = pa.schema([pa.field("id", pa.int64()), *added_columns(source.columns)])
        parts = list(read_parts(source, schema, OffsetRange(topic, 0, 0, 3)))
        return [row for part in parts for row in part.rows.to_pylist()], [b for p in parts for b in p.bad.to_pylist()]

    rows, bad = read("required", on_error="dead_letter", columns=["headers"])
    assert rows == [{"id": 0, "kafka_headers": [{"key": "", "value": None}]}]
    assert [(b["source_offset"], b["headers"]) for b in bad] == [(1, None), (2, None)]
    assert all("more than 100,000" in b["reason"] for b in bad)
    rows, bad = read("required", on_error="dead_letter")
    assert [row["id"] for row in rows] == [0, 1] and [(b["value"], b["headers"]) for b in bad] == [(b"2", None)]
    with raises(BadRecord, "record-unreadable"):
        read("required", columns=["headers"])
    raw = KafkaSource(topic, bootstrap_servers=servers, format="raw", compiled_fetch="required")
    with raises(BadRecord, "record-unreadable"):
        list(read_parts(raw, RAW_COLUMNS, OffsetRange(topic, 0, 0, 3)))
    monkeypatch.setattr(MessageConsumer, "_has_told", False)
    with caplog.at_level(logging.WARNING, "onefold.sources.kafka"):
        rows, _ = read("off", on_error="dead_letter", columns=["headers"])
    assert [len(row["kafka_headers"]) for row in rows] == [1, 0]
    assert sum("a record of more than 100,000 headers is read as one without any" in m for m in caplog.messages) == 1
    close_consumers()


def test_what_a_header_counts_is_in_what_a_record_may_have(kafka_server: Any, kafka_topic: Callable[..., str]) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=1)
    put_batch(servers, topic, [(b"12", 1), (b"12", 2)])
    choices: tuple[Any, ...] = ("required", "off")
    for compiled in choices:
        for format in ("raw", "json"):
            settings: dict[str, Any] = {"format": format, "schema": "id long" if format == "json" else None}
            source = KafkaSource(
                topic,
                bootstrap_servers=servers,
                record_bytes_max=2 + HEADER_BYTES,
                on_error="skip" if format == "raw" else "dead_letter",
                compiled_fetch=compiled,
                **settings,
            )
            schema = RAW_COLUMNS if format == "raw" else pa.schema([("id", pa.int64())])
            parts = list(read_parts(source, schema, OffsetRange(topic, 0, 0, 2)))
            reasons = {b["source_offset"]: b["reason"] for part in parts for b in part.bad.to_pylist()}
            assert f"{2 + 2 * HEADER_BYTES} bytes" in reasons[1] and f"{HEADER_BYTES + 2}" in reasons[1]
            assert format == "json" or [*reasons] == [1]
    close_consumers()
