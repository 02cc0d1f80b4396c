"""The compiled fetch beside the one without it, on a real broker: the same records, bounded, and nothing left behind.

What both have to do by themselves is in test_fetch.py, where each test runs in both ways.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer, cimpl
from harness.errors import raises
from kafka import KafkaProducer

from onefold.core.errors import BadRecord, ConfigError, Retriable
from onefold.sources import KafkaSource
from onefold.sources.kafka import RAW_COLUMNS, OffsetRange, WantedFields, close_consumers, fetch, read
from onefold.sources.kafka.fetching import consumer, fetcher
from onefold.sources.kafka.fetching.compiled_fetch import find
from onefold.sources.native.building import NotBuilt, build, compiler
from onefold.sources.native.library import LIBRARY_VARIABLE

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(compiler() is None and isinstance(find(), str), reason="no C compiler, so nothing was built"),
]
Topic = Callable[..., str]
both = pytest.mark.parametrize("compiled", ["off", "required"])

NAMES = ["h", "h", "ключ", "", "x" * 40]
LATEST_MS = 253_402_300_799_999  # the last that Python knows
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@pytest.fixture
def servers(kafka_server: Any) -> Iterator[str]:
    yield str(kafka_server.bootstrap_servers)
    close_consumers()


def some_bytes(chance: random.Random) -> bytes | None:
    return chance.choice([None, b"", b"\n", b"\0{}", b"{}", chance.randbytes(chance.randrange(300))])


def send_all_kinds(servers: str, topic: str, count: int, seed: int = 7) -> list[tuple[Any, ...]]:
    """Nulls, empty ones, any bytes, headers, timestamps; by turns plain, committed and aborted. Answers with those that
    a reader is to see: timestamp in ms, key, value, headers."""
    chance, sent = random.Random(seed), list[tuple[Any, ...]]()
    plain = Producer({"bootstrap.servers": servers, "log_level": 0})
    bound = Producer({"bootstrap.servers": servers, "log_level": 0, "transactional.id": topic})
    bound.init_transactions(30)
    for turn, first in enumerate(range(0, count, 50)):
        producer = plain if turn % 3 == 0 else bound
        if producer is bound:
            producer.begin_transaction()
        for number in range(first, first + 50):
            headers = [(chance.choice(NAMES), some_bytes(chance)) for _ in range(chance.choice([0, 0, 1, 3]))]
            at = chance.choice([1, LATEST_MS, 1_763_692_380_000 + number])
            key, value = some_bytes(chance), some_bytes(chance)
            producer.produce(topic, value, key, 0, timestamp=at, headers=headers)
            if turn % 3 != 2:
                sent.append((at, key, value, [{"key": name, "value": text} for name, text in headers]))
        assert producer.flush(30) == 0
        if turn % 3 == 1:
            bound.commit_transaction(30)
        elif turn % 3 == 2:
            bound.abort_transaction(30)
    return sent


def ms_of(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def end_of(servers: str, topic: str) -> int:
    """Once the last marker is written."""
    broker, at = fetcher.Broker(servers, {}), [(topic, 0)]
    deadline = time.monotonic() + 10
    while (end := broker.latest(at)[topic, 0]) != broker.log_end(at)[topic, 0]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return end


def rows(servers: str, schema: pa.Schema, wanted: OffsetRange, compiled: str, **more: Any) -> list[dict[str, Any]]:
    is_raw = set(schema.names) <= set(RAW_COLUMNS.names)
    source = KafkaSource(
        wanted.topic,
        bootstrap_servers=servers,
        format="raw" if is_raw else "json",
        schema=None if is_raw else "a long",
        compiled_fetch=compiled,
    )
    batches = read(source, schema, wanted, **more)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8])
def test_both_ways_give_the_records_that_were_sent_whatever_they_hold(
    servers: str, kafka_topic: Topic, seed: int
) -> None:
    topic = kafka_topic(partitions=1, config=ANY_TIME)
    sent = send_all_kinds(servers, topic, 900, seed)
    whole = OffsetRange(topic, 0, 0, end_of(servers, topic))
    expected = rows(servers, RAW_COLUMNS, whole, "off")
    assert len(expected) == 600  # a third was aborted
    assert [(ms_of(row["timestamp"]), row["key"], row["value"], row["headers"]) for row in expected] == sent
    for kind in ("key", "value", "headers"):
        absent: list[object] | None = [] if kind == "headers" else None
        assert any(row[kind] == absent for row in expected) and any(row[kind] for row in expected)
    for rows_max in (1, 7, 10_000):
        assert rows(servers, RAW_COLUMNS, whole, "required", rows_max=rows_max) == expected
    parts = [OffsetRange(topic, 0, start, min(start + 61, whole.end)) for start in range(0, whole.end, 61)]
    assert [row for part in parts for row in rows(servers, RAW_COLUMNS, part, "required")] == expected
    for name in RAW_COLUMNS.names:
        alone = pa.schema([RAW_COLUMNS.field(name)])
        assert rows(servers, alone, whole, "required") == [{name: row[name]} for row in expected]


class Name(str):
    """A header's name of whatever bytes."""

    def encode(self, *_: str) -> bytes:
        return b"a\xff"


def test_a_header_whose_name_is_not_utf8_is_read_as_java_reads_it_or_refused_with_the_record(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    producer = KafkaProducer(bootstrap_servers=servers)
    producer.send(topic, b"v", partition=0, headers=[(Name("a?"), b"2"), ("ключ", b"1")])
    producer.close()
    headers, wanted = pa.schema([RAW_COLUMNS.field("headers")]), OffsetRange(topic, 0, 0, 1)
    (row,) = rows(servers, headers, wanted, "required")
    assert row["headers"] == [{"key": "a\ufffd", "value": b"2"}, {"key": "ключ", "value": b"1"}]
    for _ in range(30):  # until the interpreter has specialised what it runs
        with raises(BadRecord, "record-unreadable", f"{topic}"):
            rows(servers, headers, wanted, "off")


def test_both_ways_parse_and_refuse_the_same_json(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    good = [b'{"a":1}', '{"a":2,"ü":"é"}'.encode(), b'{\n"a":3\n}', b' {"a":4}\n']
    bad = [b"", b"{}{}", b"{}\n{}", b'{"a":"}', b'{"}', b'{"s":"\xff"}', b'{"a":1.5}', None]
    for value in [*good, *bad]:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    schema = pa.schema({"a": pa.int64()})
    for end in (1, 2, 3, 4):
        for compiled in ("off", "required"):
            found = rows(servers, schema, OffsetRange(topic, 0, 0, end), compiled)
            assert found == [{"a": n} for n in range(1, end + 1)]
    for start in [*range(4, 12), 0]:
        said = []
        for compiled in ("off", "required"):
            with pytest.raises(BadRecord) as caught:
                rows(servers, schema, OffsetRange(topic, 0, start, 12), compiled)
            said.append(str(caught.value))
        assert said[0] == said[1]


@both
def test_batches_have_a_bound_in_bytes_and_one_large_record_goes_alone(
    servers: str, kafka_topic: Topic, monkeypatch: pytest.MonkeyPatch, compiled: str
) -> None:
    monkeypatch.setattr(fetcher, "BYTES_MAX", 100_000)
    monkeypatch.setattr(consumer, "_CONSUME_MAX", 100)  # or one chunk may be all there is
    topic = kafka_topic(partitions=1)
    sizes = [*[1_000] * 450, 900_000, *[1_000] * 450]
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for size in sizes:
        producer.produce(topic, b"x" * size, partition=0)
    assert producer.flush(30) == 0
    batches = list(fetch(servers, {}, OffsetRange(topic, 0, 0, len(sizes)), compiled=compiled))
    found = [[len(value or b"") for value in records.values] for records in batches]
    assert [size for batch in found for size in batch] == sizes
    if compiled == "required":  # the other way takes whole chunks of messages
        assert max(sum(batch) for batch in found if len(batch) > 1) <= 100_000
    assert len(found) > 2


@both
def test_an_interrupted_read_ends_at_once_and_leaves_nothing_behind(
    servers: str, kafka_topic: Topic, compiled: str
) -> None:
    topic = kafka_topic(partitions=1)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for _ in range(10):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):  # while it waits for records that are not there yet
            list(fetch(servers, {}, OffsetRange(topic, 0, 0, 20), compiled=compiled))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 15
    abandoned = fetch(servers, {}, OffsetRange(topic, 0, 0, 10), messages_max=2, compiled=compiled)
    kept = next(abandoned)
    abandoned.close()  # as Spark does with a task that was killed
    assert sum(len(r) for r in fetch(servers, {}, OffsetRange(topic, 0, 0, 10), compiled=compiled)) == 10
    close_consumers()
    assert set(kept.values) == {b"x"}  # its consumer is gone


def test_both_ways_refuse_the_same_settings_in_the_same_words(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    for settings in ({"fetch.mx.bytes": "1"}, {"fetch.max.bytes": "many"}, {"check.crcs": "perhaps"}):
        said = []
        for compiled in ("off", "required"):
            with pytest.raises(ConfigError) as caught:
                list(fetch(servers, settings, OffsetRange(topic, 0, 0, 1), compiled=compiled))
            said.append(str(caught.value))
        assert said[0] == said[1]


@pytest.mark.slow
def test_what_the_client_says_of_its_connections_is_in_the_error_both_ways(servers: str, kafka_topic: Topic) -> None:
    wanted = OffsetRange(kafka_topic(partitions=1), 0, 0, 1)
    for compiled in ("off", "required"):
        with pytest.raises(Retriable, match="SSL"):
            list(fetch(servers, {"security.protocol": "SSL"}, wanted, timeout_s=5, compiled=compiled))


@pytest.mark.slow
def test_many_ranges_leave_no_memory_and_no_threads_behind(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1, config=ANY_TIME)
    send_all_kinds(servers, topic, 600)
    end = end_of(servers, topic)
    everything = WantedFields(key=True, timestamp=True, headers=True, lines=True)
    librdkafka = ctypes.CDLL(cimpl.__file__)

    def read_much(times: int) -> None:
        for number in range(times):
            wanted = OffsetRange(topic, 0, number % 100, end)
            batches = fetch(servers, {}, wanted, columns=everything, messages_max=50, compiled="required")
            for records in batches:
                records.column(RAW_COLUMNS.field("headers"))
                if number % 5 == 0:
                    break  # abandoned, its consumer with it
            batches.close()
        close_consumers()

    close_consumers()
    threads, arrow = librdkafka.rd_kafka_thread_cnt(), pa.total_allocated_bytes()
    read_much(15)
    before = psutil.Process().memory_info().rss
    read_much(45)
    assert psutil.Process().memory_info().rss - before < 16 << 20
    assert librdkafka.rd_kafka_thread_cnt() == threads
    assert pa.total_allocated_bytes() == arrow


@pytest.mark.proof
@pytest.mark.soak
def test_the_same_tests_pass_under_the_address_and_undefined_behaviour_sanitizers(
    kafka_server: Any, tmp_path: Path
) -> None:
    """Some of them; `make sanitize` runs all, and looks for leaks at the end, which takes a minute."""
    is_whole = os.environ.get("ONEFOLD_SANITIZE") == "whole"
    flags = ["-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    try:
        library = build(tmp_path / "sanitized_fetch.so", flags)
    except NotBuilt as error:
        if "sanitize" not in str(error) or "timed out" in str(error):
            raise
        pytest.skip(f"this compiler has no sanitizers: {error}")
    command = compiler()
    assert command is not None
    runtimes = [
        subprocess.run(
            [*command, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(runtime).is_absolute() for runtime in runtimes):
        pytest.skip(f"the sanitizers' libraries are not where {command} looks for them")
    here, report = Path(__file__).parent, tmp_path / "sanitizer"
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(runtimes),
        # Python itself leaves memory behind: leaks are looked for in our own frames below.
        "ASAN_OPTIONS": f"detect_leaks={is_whole:d}:quarantine_size_mb=1:symbolize=0:log_path={report}",
        "LSAN_OPTIONS": "exitcode=0",
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # the others get memory that the sanitizer doesn't watch
        LIBRARY_VARIABLE: str(library),
        "ONEFOLD_SERVERS": "external",
        "ONEFOLD_KAFKA": kafka_server.bootstrap_servers,
    }
    tests = ["test_fetch.py", "test_compiled_fetch.py"]
    chosen = "required and not broker" if is_whole else "required and (markers or deleted or bytes or interrupted)"
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", f"{chosen} or both_ways or many_ranges"]
    command = [sys.executable, "-m", "pytest", *options, *(str(here / test) for test in tests)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for file in tmp_path.glob("sanitizer.*"):
        text = file.read_text(errors="replace")
        assert "ERROR: AddressSanitizer" not in text and "runtime error" not in text, text[:5000]
        leaks = [leak for leak in text.split("\n\n") if library.name in leak]
        assert not leaks, leaks[0]
