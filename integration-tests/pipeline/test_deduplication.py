"""The deduplicating reader on a real broker and a real Spark: repeats, restarts, replays, and bad ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
from harness.kafka.topics import in_order
from harness.support import AVAILABLE_NOW, SCHEMA, Rig, crash, failing_at
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from onefold.core import BadRecord, ConfigError, Terminal
from onefold.sinks import KafkaSink
from onefold.sources import IdsWithin, KafkaSource, OrderedIds
from onefold.spark import Pipeline, deduplicate, register
from onefold.spark.errors.failures import from_spark
from onefold.spark.verify.verification import verify

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def _one_state_partition(spark: SparkSession) -> Iterator[None]:
    """Each further one would cost a task and a Python process in every batch."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before or "4")


def put(rig: Rig, ids: Iterable[str | None], partition: int = 0, in_header: bool = False, hours_ago: float = 0) -> None:
    """Records whose value is their id."""
    at_ms = int((time.time() - hours_ago * 3600) * 1000)
    producer = in_order(rig.servers)
    for id in ids:
        headers: list[Any] = [("other", b"x"), ("id", id)] if in_header and id is not None else []
        value, key = (id or "-").encode(), None if in_header else id
        producer.produce(rig.topic, value, key, partition, headers=headers, timestamp=at_ms)
    assert producer.flush(20) == 0


def stream(rig: Rig, ids: Any, **options: str) -> DataFrame:
    register(rig.spark)
    reader = rig.spark.readStream.format("onefold_kafka").option("subscribe", rig.topic)
    return deduplicate(reader.option("kafka.bootstrap.servers", rig.servers).options(**options).load(), ids)


def run(rig: Rig, df: DataFrame, fail_at: int | None = None) -> list[list[tuple[int, str]]]:
    """Run until what is there now is read: partition and value of each batch's records, in the order they came."""
    batches: list[list[tuple[int, str]]] = []

    def take(batch: DataFrame, number: int) -> None:
        found = batch.selectExpr("partition", "cast(value as string)").collect()
        batches.append([(row[0], row[1]) for row in found])
        if number == fail_at:
            raise RuntimeError("crashed on purpose")

    writer = df.writeStream.foreachBatch(take).option("checkpointLocation", rig.checkpoint())
    query = writer.trigger(**AVAILABLE_NOW).start()
    query.awaitTermination(120)
    return batches


def values(batches: list[list[tuple[int, str]]]) -> list[str]:
    return [value for batch in batches for _, value in batch]


@pytest.mark.slow
def test_repeats_are_dropped_across_batches_restarts_and_replayed_batches(rig: Rig) -> None:
    put(rig, [f"a:{i}" for i in range(40)])
    put(rig, [*(f"a:{i}" for i in range(30, 50)), *(f"b:{i}" for i in range(20))], partition=1)
    first = run(rig, stream(rig, OrderedIds(), maxOffsetsPerTrigger="40"))
    assert len(first) == 2
    wanted = [(0, f"a:{i}") for i in range(40)], [(1, f"a:{i}") for i in range(30, 50)]
    assert sorted(chain(*first)) == sorted([*wanted[0], *wanted[1], *((1, f"b:{i}") for i in range(20))])

    put(rig, ["a:38", "a:39", "a:40", "a:5", "a:41", "a:40"])
    put(rig, ["b:19", "b:20", "a:49"], partition=1)
    with pytest.raises(StreamingQueryException, match="crashed on purpose"):
        run(rig, stream(rig, OrderedIds()), fail_at=2)
    put(rig, ["a:41", "a:42"])
    again, rest = run(rig, stream(rig, OrderedIds()))
    assert again == [(0, "a:40"), (0, "a:41"), (1, "b:20")]
    assert rest == [(0, "a:42")]


@pytest.mark.slow
def test_ids_within_a_span_are_remembered_and_what_was_never_seen_is_kept_however_late_it_is(rig: Rig) -> None:
    """By the records' own times, Spark would drop what comes behind its watermark, without a word."""
    ids = IdsWithin("1 hour", id="header:id")
    put(rig, ["x", "y", "x", "z"], in_header=True)
    put(rig, ["y", "v"], partition=1, in_header=True)
    assert sorted(values(run(rig, stream(rig, ids)))) == ["v", "x", "y", "z"]
    put(rig, ["z", "w", "w", "x"], in_header=True)
    put(rig, ["late", "late"], in_header=True, hours_ago=100)
    assert sorted(values(run(rig, stream(rig, ids)))) == ["late", "w"]


@pytest.mark.slow
@pytest.mark.parametrize(("ids", "bad"), [(OrderedIds(), None), (IdsWithin("1 hour"), "")])
def test_a_record_without_an_id_ends_the_query_and_is_named(rig: Rig, ids: Any, bad: str | None) -> None:
    put(rig, ["a:1", "a:2", bad, "a:3"], partition=2)
    with pytest.raises(StreamingQueryException) as error:
        run(rig, stream(rig, ids))
    reason = from_spark(error.value)
    assert isinstance(reason, BadRecord)
    assert str(reason).startswith(f"{rig.topic}/2 offset 2: the record's key is")


@pytest.mark.slow
def test_what_cannot_be_deduplicated_is_refused_before_the_query_starts(rig: Rig) -> None:
    register(rig.spark)
    options = {"subscribe": rig.topic, "kafka.bootstrap.servers": rig.servers}
    raw = rig.spark.readStream.format("onefold_kafka").options(**options).load()
    json = rig.spark.readStream.format("onefold_kafka").options(**options, format="json", schema="id long").load()
    for df, ids, message in (
        (json, OrderedIds(), "where in Kafka a record was"),
        (raw.drop("key"), OrderedIds(), "no column key or kafka_key"),
        (raw.drop("headers"), IdsWithin("1 hour", id="header:id"), "no column headers"),
        (raw, IdsWithin("1 hour", id="event"), "no column 'event'"),
        (raw, OrderedIds(id="offset"), "is no text"),
        (raw, OrderedIds(source="key", sequence="value"), "the sequence an integer"),
        (raw, OrderedIds(source="key", sequence="n"), "no column 'n'"),
    ):
        with pytest.raises(ConfigError, match=message):
            deduplicate(df, ids)
    pipeline = rig.pipeline()
    with pytest.raises(ConfigError, match=r"use pipeline\.read and"):
        pipeline.write_direct(rig.spark, rig.source(deduplicate=OrderedIds()), rig.checkpoint())


@pytest.mark.soak
def test_what_a_keyed_sink_wrote_repeatedly_arrives_once(
    rig: Rig, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka to Kafka to Postgres: one driver dies once its writers are done, another one in the reader."""
    between, store = kafka_topic(partitions=3), f"sqlite:///{rig.directory / 'between.db'}"
    ids = ("kafka_topic", "kafka_partition", "kafka_offset")
    sink = KafkaSink(between, bootstrap_servers=rig.servers, delivery="keyed", id=ids)
    rig.put(400)

    def forward(failing: str | None) -> None:
        pipeline = Pipeline("between", sinks=[sink], store=store, patience_s=60)
        with monkeypatch.context() as patched:
            if failing is not None:
                failing_at(patched, failing, crash)
            try:
                df = pipeline.read(rig.spark, rig.source(columns="position", at_most=None))
                rig.finish(pipeline, pipeline.write(df, rig.checkpoint("between"), AVAILABLE_NOW))
            finally:
                pipeline.close()

    with pytest.raises(Terminal, match="CrashError"):
        forward("before:Decide")
    forward(None)
    written = rig.spark.read.format("onefold_kafka").options(
        **{"subscribe": between, "kafka.bootstrap.servers": rig.servers}
    )
    assert written.load().count() == 800

    source = KafkaSource(between, bootstrap_servers=rig.servers, format="json", schema=SCHEMA, deduplicate=OrderedIds())
    pipeline = rig.pipeline(rig.sink())
    with monkeypatch.context() as patched:
        failing_at(patched, "after:Decide", crash)
        with pytest.raises(Terminal, match="CrashError"):
            rig.run(pipeline, source, "reading")
    rig.run(pipeline, source, "reading")
    rig.assert_exact()
    found = verify(rig.spark, pipeline, source, rig.sink(), ["id"])
    assert found.is_exact, found
