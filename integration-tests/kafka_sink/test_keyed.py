"""KafkaSink(delivery="keyed") on a real broker, without Spark: what is in the topic after which cut."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from harness.errors import raises
from harness.kafka.reading import Reader
from harness.pipeline_drivers import Epochs
from harness.support import CrashError, crash, failing_at
from py4j.java_gateway import JavaGateway

from onefold.clients.kafka.cluster import cluster
from onefold.core import (
    Announcement,
    Committable,
    EpochRecord,
    EpochState,
    Positions,
    Range,
    SinkKind,
    TaskId,
    WriteThrough,
)
from onefold.core.errors import BadRecord, ConfigError
from onefold.core.testing import BrokenPromise, Promise, check_sink
from onefold.core.testing.conformance.workbench import answer_of
from onefold.local.artifacts import kafka_jars
from onefold.local.java import find_java
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import LogRecord

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka_keyed")]

Topic = Callable[..., str]
PARTITIONS = 4
CALLS = {"write", "prepare", "writer's abort", "announce", "seal", "commit", "bind", "write_ledger", "open", "recover"}


class Readers:
    """All records of a topic, by id; what was written repeatedly must be the same each time."""

    def __init__(self, servers: str, topic: str) -> None:
        self.reader = Reader(servers, topic, PARTITIONS, "read_uncommitted")

    def values(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for message in self.reader.read():
            key, value = message.key(), message.value()
            assert found.setdefault(key, value) == value, f"{key!r} was written as {found[key]!r} and as {value!r}"
        return found

    def ids(self) -> list[int]:
        return [int(key) for key in self.values()]


@pytest.mark.slow
def test_the_keyed_sink_keeps_its_promises(kafka_server: Any, kafka_topic: Topic) -> None:
    topic, servers = kafka_topic(PARTITIONS), kafka_server.bootstrap_servers
    readers = Readers(servers, topic)
    sink = partial(KafkaSink, topic, bootstrap_servers=servers, delivery="keyed", id="id")
    code = ("onefold.sinks.kafka", "onefold.sinks.write_through")
    sibling = partial(sink, name="sibling")
    report = check_sink(sink, readers.ids, make_sibling=sibling, modules=code, steps_max=1, moments=1)
    print(f"\n{report}")
    assert report.strikes.keys() == CALLS
    assert len(readers.reader.messages) > len(readers.values())


@pytest.mark.slow
def test_a_keyed_sink_of_ordered_ids_keeps_its_promises_to_a_reader_of_the_highest(
    kafka_server: Any, kafka_topic: Topic
) -> None:
    topic, servers = kafka_topic(1), kafka_server.bootstrap_servers
    reader = Reader(servers, topic, 1, "read_uncommitted")

    def seen() -> list[int]:
        highest: dict[bytes, int] = {}
        kept = []
        for message in reader.read():
            source, _, number = (message.key() or b"").rpartition(b":")
            if int(number) > highest.get(source, -1):
                highest[source] = int(number)
                kept.append(int(number))
        return kept

    check = partial(
        check_sink,
        rows=seen,
        make_batch=of_three_sources,
        modules=("onefold.sinks.kafka", "onefold.sinks.write_through"),
        steps_max=1,
        moments=0,
    )
    sink = partial(KafkaSink, topic, bootstrap_servers=servers, delivery="keyed", id=("source", "id"))
    report = check(sink)
    assert report.promises[Promise.SHARED_OUT]
    with pytest.raises(BrokenPromise, match="rows are missing") as broken:
        check(partial(InAnyTask, topic, bootstrap_servers=servers, delivery="keyed", id=("source", "id")))
    assert broken.value.promise is Promise.SHARED_OUT


class InAnyTask(KafkaSink):
    """It asks for the order of each task's rows, and not for a source's rows in one task."""

    def partition_by(self) -> tuple[str, ...]:
        return ()


def of_three_sources(ids: Sequence[int]) -> pa.RecordBatch:
    """The sources of one kit's pipeline are no other's: it takes thousands of ids at most."""
    return pa.record_batch({"source": [f"{i >> 20}/{i % 3}" for i in ids], "id": pa.array(ids, pa.int64())})


SCHEMA = pa.schema([("source", pa.string()), ("n", pa.int64()), ("key", pa.string())])


def rows(source: str, first: int, end: int) -> pa.RecordBatch:
    """Ids source:first to source:end, of versions of three keys."""
    numbers = range(first, end)
    columns = {"source": [source] * len(numbers), "n": numbers, "key": [f"{source}{n % 3}" for n in numbers]}
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


class Line:
    """A keyed sink whose ids are in a header beside the rows' own keys, and what its readers see."""

    def __init__(self, server: Any, topic: str, directory: Path) -> None:
        self.store = f"sqlite:///{directory / 'store.db'}"
        self.sink = KafkaSink(
            topic,
            bootstrap_servers=server.bootstrap_servers,
            delivery="keyed",
            key="key",
            id=("source", "n"),
            id_header="id",
        )
        self.reader = Reader(server.bootstrap_servers, topic, PARTITIONS, "read_uncommitted")

    def life(self) -> Epochs:
        answer_of(partial(self.sink.recover, "p"), within_s=20).close()  # the ledger topic may be just made
        return Epochs(self.sink, SCHEMA, store=self.store)

    def ids(self) -> list[tuple[int, str, int]]:
        """Partition, source and number of each record in the topic, each partition's in its order."""
        messages = sorted(self.reader.read(), key=lambda m: (m.partition() or 0, m.offset() or 0))
        return [(m.partition() or 0, *parts(m)) for m in messages]

    def deduplicated(self) -> list[tuple[int, str, int]]:
        highest: dict[tuple[int, str], int] = {}
        kept = []
        for partition, source, number in self.ids():
            if number > highest.get((partition, source), -1):
                highest[partition, source] = number
                kept.append((partition, source, number))
        return kept

    def assert_exact(self, **sources: int) -> None:
        """Each source's numbers, from 0 on, once, and in order in each partition."""
        kept = self.deduplicated()
        assert sorted((source, n) for _, source, n in kept) == [
            (s, n) for s in sorted(sources) for n in range(sources[s])
        ]
        for partition in range(PARTITIONS):
            for source in sources:
                mine = [n for p, s, n in kept if (p, s) == (partition, source)]
                assert mine == sorted(mine)

    def newest(self) -> dict[bytes, int]:
        """What a compacted topic keeps: each key's last record."""
        messages = sorted(self.reader.read(), key=lambda m: m.offset() or 0)
        return {m.key() or b"": parts(m)[1] for m in messages}


def parts(message: Message) -> tuple[str, int]:
    (id,) = [value for name, value in message.headers() or () if name == "id"]
    source, _, number = id.decode().rpartition(":")
    return source, int(number)


@pytest.fixture
def line(kafka_server: Any, kafka_topic: Topic, tmp_path: Path) -> Line:
    return Line(kafka_server, kafka_topic(PARTITIONS), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["after:Announce", "after:Verify", "after:Decide"])
def test_an_epoch_that_a_crash_cut_short_is_read_once_and_in_order(
    line: Line, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [[rows("a", 0, 300), rows("a", 300, 400)], [rows("b", 0, 50)]]
    with line.life() as first, monkeypatch.context() as patched:
        failing_at(patched, place, crash)
        with pytest.raises(CrashError):
            first.run(*tasks)
    with line.life() as second:
        is_decided = place == "after:Decide"
        assert second.started is not None and second.started.finished == is_decided
        if not is_decided:
            second.run(*tasks)
        second.run([rows("a", 400, 500)], [rows("b", 50, 60)])
    line.assert_exact(a=500, b=60)
    again = place == "after:Verify"
    assert len(line.ids()) == 560 + 450 * again
    assert line.newest() == {b"a0": 498, b"a1": 499, b"a2": 497, b"b0": 57, b"b1": 58, b"b2": 59}


def test_attempts_that_overlap_and_tasks_that_wake_late_are_read_once_and_in_order(line: Line) -> None:
    with line.life() as life:
        lost: list[Any] = []

        def beside() -> None:
            """Two more attempts of the task: one is killed half way, one falls asleep."""
            for _ in range(2):
                writer = line.sink.writer(task(life, 1))
                writer.write(rows("a", 0, 60))
                lost.append(writer)
            lost[0].abort()

        life.run([rows("a", 0, 100)], doing=beside)
        life.run([rows("a", 100, 200)])
        lost[1].write(rows("a", 60, 100))
        lost[1].prepare()
        life.run([rows("a", 200, 210)])
    assert len(line.ids()) >= 310
    line.assert_exact(a=210)


def task(life: Epochs, epoch: int) -> TaskId:
    assert life.started is not None
    return TaskId(life.pipeline, life.started.generation.number, epoch, 1, uuid.uuid4())


@pytest.mark.slow
def test_a_keys_order_is_kept_within_an_epoch_and_across_epochs(line: Line) -> None:
    with line.life() as life:
        for epoch in range(3):
            first = epoch * 3000
            many = [rows("a", first + i * 1000, first + i * 1000 + 1000) for i in range(3)]
            life.run(many, [rows("b", epoch * 10, epoch * 10 + 10)])
    found = line.ids()
    assert len(found) == 9030
    for key in (f"{source}{i}" for source in "ab" for i in range(3)):
        source, third = key[0], int(key[1])
        there = [(p, n) for p, s, n in found if s == source and n % 3 == third]
        assert len({p for p, _ in there}) == 1
        assert [n for _, n in there] == sorted(n for _, n in there)


def test_nothing_is_written_behind_a_record_that_kafka_refuses(
    kafka_server: Any, kafka_topic: Topic, tmp_path: Path
) -> None:
    """It would look seen when it comes again."""
    topic = kafka_topic(1, config={"max.message.bytes": "2000"})
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    sink = KafkaSink(
        topic,
        bootstrap_servers=kafka_server.bootstrap_servers,
        delivery="keyed",
        id="n",
        client_config={"batch.num.messages": "1", "linger.ms": "0"},
    )
    texts = ["x" * (10_000 if n == 30 else 10) for n in range(200)]
    batch = pa.RecordBatch.from_arrays([pa.array(range(200)), pa.array(texts)], schema=schema)
    with Epochs(sink, schema, pipeline=topic, store=f"sqlite:///{tmp_path / 'store.db'}") as life:
        with raises(BadRecord, "kafka-record-refused"):
            life.run([batch])
        found = [
            int(m.key() or b"") for m in Reader(kafka_server.bootstrap_servers, topic, 1, "read_uncommitted").read()
        ]
    assert found == [*range(len(found))]
    assert len(found) <= 30


def test_a_driver_that_was_taken_over_notes_nothing(line: Line, kafka_server: Any) -> None:
    first, second, third = (answer_of(partial(line.sink.recover, "p"), within_s=20) for _ in range(3))
    assert isinstance(first, WriteThrough) and isinstance(second, WriteThrough)
    name, span = line.sink.name, Range(Positions(), Positions.of({"t/0": 1}))
    record = EpochRecord("p", 1, 1, EpochState.OPEN, span, 1000, "q", 0, "job", sinks=(name,), write_through=(name,))
    first.announce(record)
    second.announce(replace(record, generation=2))
    log = partial(notes, kafka_server.bootstrap_servers, f"onefold/p/{name}#")
    before = log()
    first.seal([Committable(name, SinkKind.WRITE_THROUGH, "attempt", 1, 1, 10)])
    assert log() == before
    entry = third.ledger()
    assert entry is not None and entry.announced == Announcement(1, 2, 1000, span)
    for committer in (first, second, third):
        committer.close()


def notes(servers: str, prefix: str) -> list[str]:
    """The keys of a sink's records in the ledger topic, in their order."""
    log = txn_admin.read_log(cluster(servers, {}, 20), "onefold_progress-p", 0)
    keys = [item.key for items, _ in log for item in items if isinstance(item, LogRecord)]
    return [key for key in keys if key.startswith(prefix)]


def test_a_row_without_an_id_is_refused(line: Line) -> None:
    with line.life() as life:
        bad = rows("a", 0, 3).set_column(0, SCHEMA.field("source"), pa.array(["a", None, "a"]))
        with raises(BadRecord, "id-missing"):
            life.run([bad])


def test_a_sink_that_wrote_transactions_is_not_taken_over(line: Line, kafka_server: Any) -> None:
    given = line.sink.settings
    other = KafkaSink(given.topic, bootstrap_servers=kafka_server.bootstrap_servers, name="moved")
    with Epochs(other, SCHEMA, pipeline=given.topic, store=line.store) as life:
        life.run([rows("a", 0, 3)])
    moved = KafkaSink(
        given.topic,
        bootstrap_servers=kafka_server.bootstrap_servers,
        name="moved",
        delivery="keyed",
        id=("source", "n"),
    )
    with raises(ConfigError, "delivery-changed"):
        Epochs(moved, SCHEMA, pipeline=given.topic, store=line.store)


def test_a_sink_that_wrote_ids_does_not_go_on_with_transactions(line: Line, kafka_server: Any) -> None:
    with line.life() as life:
        life.run([rows("a", 0, 3)])
    changed = KafkaSink(line.sink.name, bootstrap_servers=kafka_server.bootstrap_servers)
    with raises(ConfigError, "delivery-changed", "delivery='keyed'"):
        Epochs(changed, SCHEMA, store=line.store)


KEYS: Sequence[bytes | None] = [
    b"",
    "größe".encode(),
    "日本語".encode(),
    "🙂".encode(),
    b"\x00",
    b"\xff\xfe\x80",
    *(bytes(range(length)) for length in range(1, 20)),
    *(random.Random(length).randbytes(length) for length in range(1, 40)),
    *(str(number).encode() for number in range(200)),
]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaGateway]:
    """A JVM with Kafka's own client."""
    found = find_java()
    gateway = JavaGateway.launch_gateway(
        classpath=f"{kafka_jars(found)}/*",
        java_path=str(found.path),
        die_on_exit=True,
    )
    yield gateway
    gateway.shutdown()


@pytest.mark.slow
def test_keys_go_to_the_partitions_where_javas_producer_sends_them(
    java: JavaGateway, kafka_server: Any, kafka_topic: Topic, tmp_path: Path
) -> None:
    theirs, ours = kafka_topic(7), kafka_topic(7)
    properties = java.jvm.java.util.Properties()
    properties.put("bootstrap.servers", kafka_server.bootstrap_servers)
    for part in ("key", "value"):
        properties.put(f"{part}.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer")
    producer = java.jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)
    record = java.jvm.org.apache.kafka.clients.producer.ProducerRecord
    sent = [producer.send(record(theirs, key, str(i).encode())) for i, key in enumerate(KEYS)]
    producer.close()
    wanted = [future.get().partition() for future in sent]
    assert len(set(wanted)) == 7

    schema = pa.schema([("n", pa.int64()), ("key", pa.binary())])
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(KEYS))), pa.array(KEYS, pa.binary())], schema=schema)
    sink = KafkaSink(
        ours, bootstrap_servers=kafka_server.bootstrap_servers, delivery="keyed", key="key", id="n", id_header="id"
    )
    with Epochs(sink, schema, pipeline=ours, store=f"sqlite:///{tmp_path / 'store.db'}") as life:
        life.run([batch])
        nulls = batch.slice(0, 50).set_column(1, schema.field("key"), pa.nulls(50, pa.binary()))
        life.run([nulls])
    messages = Reader(kafka_server.bootstrap_servers, ours, 7, "read_uncommitted").read()
    assert len([m for m in messages if m.key() is None]) == 50
    got = {int(dict(m.headers())["id"]): m.partition() for m in messages if m.key() is not None}
    assert [got[i] for i in range(len(KEYS))] == wanted
