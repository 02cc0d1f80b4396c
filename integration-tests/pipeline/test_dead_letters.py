"""Source records that cannot be read: dead letters in the same epoch as the rows, each once, whatever crashes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.errors import raises
from harness.kafka.reading import Reader, open_transactions
from harness.kafka.topics import in_order
from harness.pipeline_drivers import NUMBERS, PipelineDriver, at_failpoint
from harness.support import CrashError, Rig, crash

from onefold.core import Committable, ConfigError, EpochRecord, Fenced, Sink, SinkWriter, TaskId
from onefold.core.errors import BadRecord, Retriable
from onefold.core.protocol.patience import Patience
from onefold.core.writing.dead_letters import BAD_COLUMNS, LETTER_COLUMNS, LETTER_HEADERS, Policy, letters
from onefold.sinks import KafkaSink, PostgresSink
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.verify.verification import Verification, verify

pytestmark = pytest.mark.servers

BAD = [b'{"id":"three"}', b"\xff\x00", None, b'{"id":1,"n":2}}', b""]


def put_mixed(rig: Rig, count: int, bad_each: int = 50) -> dict[tuple[int, int], bytes | None]:
    """`count` records of which some are bad; returns these by partition and offset."""
    producer = in_order(rig.servers)
    ends = [0] * 4
    bad: dict[tuple[int, int], bytes | None] = {}
    for number in range(count):
        partition = number % 4
        if number % bad_each == 7:
            value = BAD[number // bad_each % len(BAD)]
            bad[partition, ends[partition]] = value
        else:
            value = b'{"id":%d,"n":%d}' % (number, number % 7)
            rig.sent.append((number, number % 7))
        headers = [("trace", b"\x00%d" % number), ("trace", None)]
        producer.produce(rig.topic, value, key=b"k%d" % number, partition=partition, headers=headers)
        ends[partition] += 1
    assert producer.flush(30) == 0
    return bad


def dead_sink(rig: Rig, delivery: str = "two_phase") -> PostgresSink:
    return PostgresSink(rig.url, "dead", delivery=delivery)


# Only rows with an even id are written.
WAYS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda rows: rows.filter("id % 2 = 0"),
    "function": lambda rows: rows.map_batches(  # nothing of this module, which Spark's workers do not find
        lambda batch: batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0))
    ),
    "Spark": lambda rows: rows.spark_sql("SELECT * FROM source WHERE id % 2 = 0", rows.schema),
}


def pipeline_of(rig: Rig, way: str, *sinks: Sink, letters: Sink | None = None, **reading: Any) -> FlowWriter:
    return rig.pipeline(*sinks, source=rig.source(**reading), change=WAYS[way], dead_letters=letters)


def assert_exact(rig: Rig, bad: dict[tuple[int, int], bytes | None]) -> None:
    assert rig.rows() == [row for row in rig.sent if row[0] % 2 == 0]
    letters = rig.sql("SELECT source_partition, source_offset, value FROM dead ORDER BY 1, 2")
    assert letters == [(partition, offset, value) for (partition, offset), value in sorted(bad.items())]
    rig.assert_nothing_in_doubt()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "rows", "letters"),
    [
        ("filter", "two_phase", "two_phase"),
        ("function", "staged", "two_phase"),
        ("Spark", "two_phase", "two_phase"),
        ("Spark", "two_phase", "staged"),
    ],
)
def test_bad_records_become_dead_letters_in_the_epoch_of_their_neighbours(
    rig: Rig, way: str, rows: str, letters: str
) -> None:
    bad = put_mixed(rig, 500)
    dead = dead_sink(rig, letters)
    pipeline = pipeline_of(rig, way, rig.sink(rows), letters=dead, on_error="dead_letter")
    rig.run(pipeline)
    assert_exact(rig, bad)
    assert pipeline.bad_records.dead_letters == len(bad)
    epochs = rig.sql("SELECT epoch, min(range_start), min(range_end) FROM onefold_sinks.onefold_epochs GROUP BY epoch")
    assert len(epochs) == 2
    found = rig.sql(
        "SELECT source_topic, key, headers, reason, pipeline, epoch, source_timestamp IS NOT NULL FROM dead"
        " WHERE source_partition = 3 AND source_offset = 1"
    )
    headers = [{"key": "trace", "value": "ADc="}, {"key": "trace", "value": None}]
    assert found == [(rig.topic, b"k7", headers, found[0][3], "test", 1, True)]
    assert "id is a JSON string, not a number" in found[0][3]


STEPS = (
    "writers:written",
    "writers:prepared",
    "before:Decide",
    "after:Decide",
    "before:Commit",
    "after:Commit",
    "postgres.commit_prepared",
    "before:WriteLedger",
    "after:WriteLedger",
    "before:Complete",
    "after:Complete",
)


class Lettered(PipelineDriver[Sink]):
    """A pipeline of numbers of which every tenth is bad; each epoch takes fifty of them, in two tasks."""

    SIZE = 50
    TASKS = 2

    def __init__(self, rows: PostgresSink, dead: Sink) -> None:
        self.rows, self.dead = rows, dead
        super().__init__([rows, dead], "p", patience=Patience(30, pause_max_s=0.3))
        self.may_come_late = (dead.name,)
        started = self.recover(from_ledger=True).start
        assert started is not None
        self.at = int(dict(started.items)["t/0"])
        self.open(NUMBERS, **{dead.name: LETTER_COLUMNS})

    def run(self) -> None:
        self.process(self.at, self.at + self.SIZE, self.at, self._write)

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        numbers = range(self.at, self.at + self.SIZE)
        manifest: list[Committable] = []
        for task in range(self.TASKS):
            half = numbers[task * 25 : task * 25 + 25]
            good = pa.record_batch([pa.array([n for n in half if not is_bad(n)], pa.int64())], schema=NUMBERS)
            bad = pa.RecordBatch.from_pylist(bad_of(half), schema=BAD_COLUMNS)
            manifest += self.task(self.rows, record, [good])
            manifest += self.task(self.dead, record, [bad], Policy(self.dead, 1000))
        return tuple(manifest)


def is_bad(number: int) -> bool:
    return number % 10 == 0


def bad_of(numbers: Iterable[int]) -> list[dict[str, Any]]:
    record = {"source_topic": "t", "source_partition": 0, "value": b"?", "reason": "odd"}
    return [{**record, "source_offset": n} for n in numbers if is_bad(n)]


def crash_everywhere(make: Callable[[], Lettered], monkeypatch: pytest.MonkeyPatch) -> range:
    """A life that ends at each step, and one that comes to its end; returns the numbers up to there."""
    reached = []
    for step in STEPS:
        with make() as life, monkeypatch.context() as patch:
            passed = at_failpoint(patch, step, crash)
            with suppress(CrashError):
                life.run()
        reached += passed
    assert reached == list(STEPS)
    with make() as life:
        life.run()
    numbers = range(life.at + life.SIZE)
    assert len(numbers) >= 400
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "letters"), [("two_phase", "two_phase"), ("staged", "two_phase"), ("two_phase", "staged")]
)
def test_a_crash_between_any_two_steps_leaves_each_row_and_each_dead_letter_once(
    postgres_url: str, rows: str, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PostgresSink(postgres_url, "t", delivery=rows)
    numbers = crash_everywhere(
        lambda: Lettered(table, PostgresSink(postgres_url, "dead", delivery=letters)), monkeypatch
    )
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        found = [n for (n,) in connection.execute("SELECT id FROM t ORDER BY id")]
        dead = [n for (n,) in connection.execute("SELECT source_offset FROM dead WHERE epoch > 0 ORDER BY 1")]
        prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        for left_over in (prepared, "SELECT attempt FROM onefold_sinks.onefold_staged"):
            assert connection.execute(left_over.encode()).fetchall() == []
    assert found == [n for n in numbers if not is_bad(n)]
    assert dead == [n for n in numbers if is_bad(n)]


@pytest.mark.slow
def test_a_topic_of_dead_letters_has_each_record_as_it_was_once_after_the_same_crashes(
    postgres_url: str, kafka_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, topic = str(kafka_server.bootstrap_servers), kafka_topic(partitions=2)
    table = PostgresSink(postgres_url, "t", delivery="two_phase")
    sink = KafkaSink(topic, bootstrap_servers=servers, format="raw", headers=LETTER_HEADERS)
    numbers = crash_everywhere(lambda: Lettered(table, sink), monkeypatch)
    reader = Reader(servers, topic, 2)
    letters = reader.read()
    reader.close()
    headers = [dict(letter.headers() or []) for letter in letters]
    assert sorted(int(of["source_offset"]) for of in headers) == [n for n in numbers if is_bad(n)]
    assert {(letter.value(), of["reason"], of["pipeline"]) for letter, of in zip(letters, headers, strict=True)} == {
        (b"?", b"odd", b"p")
    }
    assert [name for name in open_transactions(servers) if f"/{topic}/" in name] == []


def test_a_pipeline_may_get_its_sink_for_dead_letters_later(postgres_url: str) -> None:
    table = PostgresSink(postgres_url, "t", delivery="staged")
    with PipelineDriver([table], "p") as before:
        before.recover(from_ledger=True)
        before.open(NUMBERS)
        row = pa.record_batch([pa.array([1], pa.int64())], schema=NUMBERS)
        before.process(0, 50, 0, lambda record: before.task(table, record, [row]))
    with Lettered(table, PostgresSink(postgres_url, "dead", delivery="two_phase")) as life:
        assert life.at == 50
        life.run()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        dead = connection.execute("SELECT source_offset, epoch FROM dead ORDER BY 1").fetchall()
    assert dead == [(n, 2) for n in range(50, 100) if is_bad(n)]


class Haunted(Lettered):
    """One whose first task has a twin: it writes the same dead letters, and prepares them when it is woken."""

    zombie: SinkWriter

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        bad = pa.RecordBatch.from_pylist(bad_of(range(self.at, self.at + 25)), schema=BAD_COLUMNS)
        task = TaskId(record.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        self.zombie = self.dead.writer(task)
        self.zombie.write(letters(bad, task))
        return super()._write(record)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two_phase", "staged", "transactional", "keyed"])
def test_a_sink_for_dead_letters_that_comes_later_has_each_once_though_a_zombie_writes_its_own_late(
    kind: str, postgres_url: str, kafka_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while an epoch is decided and not committed; the zombie wakes when two further epochs are complete."""
    servers, topic = str(kafka_server.bootstrap_servers), kafka_topic(partitions=1)
    table = PostgresSink(postgres_url, "t", delivery="two_phase")

    def dead() -> Sink:
        if kind == "transactional":
            return KafkaSink(topic, bootstrap_servers=servers)
        if kind == "keyed":
            id = ("source_topic", "source_partition", "source_offset")
            return KafkaSink(topic, bootstrap_servers=servers, delivery="keyed", id=id)
        return PostgresSink(postgres_url, "dead", delivery=kind)

    def found() -> list[int]:
        if kind in ("two_phase", "staged"):
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                return [n for (n,) in connection.execute("SELECT source_offset FROM dead ORDER BY 1")]
        reader = Reader(servers, topic, 1)
        records = [(message.key(), json.loads(message.value() or b"")["source_offset"]) for message in reader.read()]
        reader.close()
        return sorted(n for _, n in (set(records) if kind == "keyed" else records))

    with PipelineDriver([table], "p") as before, monkeypatch.context() as patch:
        before.recover(from_ledger=True)
        before.open(NUMBERS)
        at_failpoint(patch, "after:Decide", crash)
        row = pa.record_batch([pa.array([1], pa.int64())], schema=NUMBERS)
        with pytest.raises(CrashError):
            before.process(0, 50, 0, lambda record: before.task(table, record, [row]))
    with Haunted(table, dead()) as first, monkeypatch.context() as patch:
        at_failpoint(patch, "before:Decide", crash)
        assert first.at == 50
        with pytest.raises(CrashError):
            first.run()
    for at in (50, 100):
        with Lettered(table, dead()) as life:
            assert life.at == at
            life.run()
    with suppress(Fenced, Retriable):  # which its own server may tell it
        first.zombie.prepare()
    with Lettered(table, dead()) as life:
        life.run()
    assert found() == [n for n in range(50, 200) if is_bad(n)]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        rows = [n for (n,) in connection.execute("SELECT id FROM t ORDER BY id")]
        prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        for left_over in (prepared, "SELECT attempt FROM onefold_sinks.onefold_staged"):
            assert connection.execute(left_over.encode()).fetchall() == []
    assert rows == [1, *(n for n in range(50, 200) if not is_bad(n))]
    assert [name for name in open_transactions(servers) if f"/{topic}/" in name] == []


@pytest.mark.slow
def test_two_sinks_that_would_both_decide_are_refused_and_the_way_out_is_said(rig: Rig) -> None:
    put_mixed(rig, 20)
    dead = dead_sink(rig, "staged")
    pipeline = pipeline_of(rig, "filter", rig.sink("staged"), letters=dead, on_error="dead_letter")
    with raises(ConfigError, "several-last-resources", "delivery='two_phase'"):
        rig.run(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["filter", "Spark"])
def test_more_bad_records_than_allowed_stop_the_pipeline_with_nothing_of_the_epoch_written(rig: Rig, way: str) -> None:
    """Five of them, of which no task sees more than two: the epoch counts."""
    put_mixed(rig, 250)
    pipeline = pipeline_of(rig, way, letters=dead_sink(rig), on_error="dead_letter", bad_records_max=4)
    with pytest.raises(BadRecord, match=r"epoch 1 .*5 records that cannot be read, more than bad_records_max=4"):
        rig.run(pipeline)
    assert rig.rows() == []
    assert rig.sql("SELECT * FROM dead") == []
    assert rig.prepared() == []


@pytest.mark.slow
def test_skipped_records_are_counted_and_the_others_are_written(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    bad = put_mixed(rig, 300)
    pipeline = pipeline_of(rig, "filter", on_error="skip")
    rig.run(pipeline)
    assert rig.rows() == [row for row in rig.sent if row[0] % 2 == 0]
    assert pipeline.bad_records.skipped == len(bad)
    assert f"epoch 1: unreadable records, skipped: {len(bad)}" in caplog.text


@pytest.mark.slow
def test_a_source_and_a_flow_must_agree_on_dead_letters(rig: Rig) -> None:
    with raises(ConfigError, "stream-unused", "dead_letters="):
        pipeline_of(rig, "filter", on_error="dead_letter")
    with raises(ConfigError, "dead-letters-mismatch", "on_error='fail'"):
        pipeline_of(rig, "filter", letters=dead_sink(rig))
    df = rig.stream(rig.source(on_error="dead_letter"))
    with pytest.raises(Exception, match="onError=dead_letter needs a flow"):
        df.writeStream.format("noop").option("checkpointLocation", rig.checkpoint()).start().awaitTermination(60)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["filter", "Spark"])
def test_the_verifier_holds_rows_and_dead_letters_against_the_source(rig: Rig, way: str) -> None:
    put_mixed(rig, 200)
    sink, reading = rig.sink(), {"on_error": "dead_letter", "bad_records_max": 3, "at_most": 100}
    pipeline = pipeline_of(rig, way, sink, letters=dead_sink(rig), **reading)
    rig.run(pipeline)

    def verified() -> Verification:
        return verify(rig.spark, pipeline, sink, ["id"])

    assert verified().is_exact
    rig.sql("DELETE FROM dead WHERE source_partition = 3 AND source_offset = 1")
    rig.sql("UPDATE dead SET value = 'x' WHERE source_offset = 14")
    found = verified().invariants
    pipeline.close()
    assert "dead" in str(found["no-loss"])
    assert sum(map(len, found.values())) > 0
