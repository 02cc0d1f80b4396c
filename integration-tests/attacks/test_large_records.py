"""Small records that become large ones, and records that no dead letter could hold."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from harness.errors import raises
from harness.kafka.reading import Reader
from harness.support import Rig, through_spark

from onefold.core import BadRecord, TaskId
from onefold.core.writing.dead_letters import LETTER_COLUMNS, LETTER_HEADERS, letters
from onefold.sinks import KafkaSink, SqlSink
from onefold.sources import KafkaSource
from onefold.sources.kafka import OffsetRange, read_parts

pytestmark = pytest.mark.servers
SCHEMA = pa.schema([("id", pa.int64())])
Topic = Callable[..., str]


@pytest.fixture(params=["required", "off"])
def compiled(request: pytest.FixtureRequest) -> str:
    """Whether the compiled helper fetches."""
    return str(request.param)


def put(servers: str, topic: str, values: list[bytes], codec: str = "none") -> None:
    """A batch for each."""
    for value in values:
        most = {"message.max.bytes": 999_000_000, "queue.buffering.max.kbytes": 2_000_000, "compression.codec": codec}
        producer = Producer({"bootstrap.servers": servers, "log_level": 0, **most})
        producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0


def parts(source: KafkaSource, end: int) -> tuple[list[int], list[dict[str, object]]]:
    """The ids of the good records below an offset, and the bad ones."""
    found = list(read_parts(source, SCHEMA, OffsetRange(source.topics[0], 0, 0, end)))
    return [n for part in found for n in part.rows["id"].to_pylist()], [b for p in found for b in p.bad.to_pylist()]


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="writes 12 KB of zstd that unpack to 400 MB, which librdkafka refuses to, again and again",
    gets="one bad record, by its offset: a dead letter that says it is cut, or BadRecord",
)
def test_a_batch_that_cannot_be_unpacked_is_a_bad_record(kafka_server: Any, kafka_topic: Topic, compiled: str) -> None:
    topic, servers = kafka_topic(partitions=1), kafka_server.bootstrap_servers
    put(servers, topic, [b'{"id":0}', b"\0" * 400_000_000, b'{"id":2}'], "zstd")
    settings = {"bootstrap_servers": servers, "format": "json", "schema": "id long", "compiled_fetch": compiled}
    ids, (bad,) = parts(KafkaSource(topic, on_error="dead_letter", timeout_s=20, **settings), 3)
    assert ids == [0, 2]
    assert (bad["source_offset"], bad["value"]) == (1, None)
    assert bad["reason"].startswith("cut to 0 of an unknown number of bytes: ")  # type: ignore[attr-defined]
    assert bad["headers"] == [{"key": "onefold.cut", "value": b'{"bytes": null, "kept": 0}'}]
    with pytest.raises(BadRecord, match=rf"{topic}/0 offset 1: .*receive\.message\.max\.bytes"):
        parts(KafkaSource(topic, timeout_s=20, **settings), 3)
    # In another settings' hands it is a record: too large by itself.
    larger = {"receive.message.max.bytes": "500000000"}
    ids, (bad,) = parts(KafkaSource(topic, on_error="skip", client_config=larger, **settings), 3)
    assert ids == [0, 2] and "the record has 400000000 bytes, more than record_bytes_max" in str(bad["reason"])


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="writes such a batch behind the marker of a transaction, with which a range of offsets ends",
    gets="nothing in that range: it ends before the batch",
)
def test_a_range_ends_before_a_batch_that_cannot_be_unpacked(
    kafka_server: Any, kafka_topic: Topic, compiled: str
) -> None:
    topic, servers = kafka_topic(partitions=1), kafka_server.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b'{"id":0}', partition=0)
    producer.commit_transaction(20)  # its marker has the offset 1
    put(servers, topic, [b"\0" * 150_000_000, b'{"id":3}'], "zstd")
    settings = {"bootstrap_servers": servers, "format": "json", "schema": "id long", "compiled_fetch": compiled}
    source = KafkaSource(topic, on_error="skip", timeout_s=10, **settings)
    assert parts(source, 2) == ([0], [])
    ids, (bad,) = parts(source, 4)
    assert (ids, bad["source_offset"]) == ([0, 3], 2)


READ = """
import re, sys
from onefold.sources import KafkaSource
from onefold.sources.kafka import OffsetRange, read_parts
import onefold.spark.flows.translation
import pyarrow as pa
servers, topic, compiled = sys.argv[1:]
source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema="id long", on_error="dead_letter",
    compiled_fetch=compiled)
def read(start, end):
    found = list(read_parts(source, pa.schema([("id", pa.int64())]), OffsetRange(topic, 0, start, end)))
    return sum(p.rows.num_rows for p in found), sum(p.bad.num_rows for p in found)
assert read(0, 1) == (1, 0)
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = most()
assert read(0, 3) == (2, 1)
print(most() - before)
"""


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="writes 200 KB of gzip that unpack to 200 MB",
    gets="a bad record that is cut; of memory, what librdkafka unpacks (and without the helper one copy)",
)
def test_a_record_beyond_the_bound_is_not_copied_into_the_batch(
    kafka_server: Any, kafka_topic: Topic, compiled: str
) -> None:
    topic, servers = kafka_topic(partitions=1), kafka_server.bootstrap_servers
    put(servers, topic, [b'{"id":0}', b'{"id":' + b"\0" * 200_000_000, b'{"id":2}'], "gzip")
    reading = [sys.executable, "-c", READ, servers, topic, compiled]
    done = subprocess.run(reading, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    mib = float(done.stdout)
    assert mib < (250 if compiled == "required" else 450), f"{mib} MiB for a record of 191 MiB"


@pytest.mark.attack(
    who="who may write records",
    does="writes a bad record so large that with its reason no dead letter would fit into a topic",
    gets="a dead letter with the beginning, and a header with how much is missing",
)
@pytest.mark.parametrize("where", ["value", "key", "headers"])
def test_every_bad_record_has_a_dead_letter_that_a_topic_takes(
    kafka_server: Any, kafka_topic: Topic, compiled: str, where: str
) -> None:
    topic, into, servers = kafka_topic(partitions=1), kafka_topic(partitions=1), kafka_server.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 1_048_000, "log_level": 0})
    large = b"x" * 999_000
    record = {"value": large} if where == "value" else {"value": b"{", where: large}
    if where == "headers":
        record = {"value": b"{", "headers": [("small", b"1"), ("large", large)]}
    producer.produce(topic, partition=0, **record)
    assert producer.flush(30) == 0
    source = KafkaSource(
        *[topic],
        bootstrap_servers=servers,
        format="json",
        schema="id long",
        on_error="dead_letter",
        compiled_fetch=compiled,
    )
    (part,) = read_parts(source, SCHEMA, OffsetRange(topic, 0, 0, 1))
    sink = KafkaSink(
        into,
        bootstrap_servers=servers,
        format="raw",
        headers=LETTER_HEADERS,
        delivery="keyed",
        id_header="source_offset",
    )
    sink.open(topic, LETTER_COLUMNS).close()
    task = TaskId(topic, 1, 1, int(time.time() * 1000), uuid.uuid4())
    writer = sink.writer(task)
    writer.write(letters(part.bad, task))
    writer.prepare()
    reader = Reader(servers, into, 1)
    (letter,) = reader.read()
    reader.close()
    headers = dict(letter.headers() or ())
    told = json.loads(headers["onefold.cut"])
    assert told["bytes"] >= 999_000 and 0 <= told["kept"] <= 768 << 10
    assert headers["reason"].decode().startswith(f"cut to {told['kept']} of {told['bytes']} bytes: ")
    if where == "value":
        assert letter.value() == large[: told["kept"]]
    elif where == "headers":
        assert headers["small"] == b"1" and "large" not in headers


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="writes both, and 999,900 bytes of no JSON, to a pipeline with dead letters in a topic",
    gets="dead letters, once; the pipeline goes on",
)
@pytest.mark.parametrize("change", [lambda rows: rows, through_spark], ids=["plain", "through Spark"])
def test_a_pipeline_gets_past_them_with_a_dead_letter_each(
    rig: Rig, kafka_topic: Topic, change: Callable[[Any], Any]
) -> None:
    into = kafka_topic(partitions=1)
    put(rig.servers, rig.topic, [b'{"id":0}'])
    put(rig.servers, rig.topic, [b"\0" * 400_000_000], "zstd")
    put(rig.servers, rig.topic, [b"{" * 999_900, b'{"id":3}'])
    source = KafkaSource(
        *[rig.topic], bootstrap_servers=rig.servers, format="json", schema="id long", on_error="dead_letter"
    )
    dead = KafkaSink(into, bootstrap_servers=rig.servers, format="raw", headers=LETTER_HEADERS)
    url = f"sqlite:///{rig.directory / 'rows.db'}"
    rig.run(rig.pipeline(SqlSink(url, "rows"), source=source, change=change, dead_letters=dead))
    with sqlite3.connect(rig.directory / "rows.db") as rows:
        assert sorted(rows.execute("SELECT id FROM rows")) == [(0,), (3,)]
    reader = Reader(rig.servers, into, 1)
    headers = [dict(letter.headers() or ()) for letter in reader.read()]
    reader.close()
    assert sorted(int(h["source_offset"]) for h in headers) == [1, 2]
    assert all(json.loads(h["onefold.cut"])["kept"] <= 768 << 10 for h in headers)


@pytest.mark.parametrize("format", ["raw", "string", "json"])
def test_what_a_record_may_have_is_a_setting_and_is_held_by_every_format(
    kafka_server: Any, kafka_topic: Topic, compiled: str, format: str
) -> None:
    topic, servers = kafka_topic(partitions=1), kafka_server.bootstrap_servers
    put(servers, topic, [b'{"id":%d}' % n + b" " * (93 + n) for n in range(3)])  # 101, 102, 103 bytes
    schema = "id long" if format == "json" else None
    settings = {"format": format, "schema": schema, "record_bytes_max": 102, "compiled_fetch": compiled}
    source = KafkaSource(topic, bootstrap_servers=servers, **settings)
    columns = {"raw": pa.schema([("offset", pa.int64()), ("value", pa.binary())]), "json": SCHEMA}
    kind = columns.get(format, pa.schema([("value", pa.string())]))
    wanted = OffsetRange(topic, 0, 0, 3)
    with raises(BadRecord, "record-unreadable", f"{topic}"):
        list(read_parts(source, kind, wanted))
    skipping = KafkaSource(topic, bootstrap_servers=servers, on_error="skip", **settings)
    (part,) = read_parts(skipping, kind, wanted)
    assert part.rows.num_rows == 2 and part.bad["source_offset"].to_pylist() == [2]
    assert KafkaSource.from_options(skipping.options()) == skipping
