"""A flow on Spark that drops repeats, with a real broker: restarts, replays, and bad ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.errors import raises
from harness.kafka.topics import in_order
from harness.support import SCHEMA, Rig, crash, failing_at
from pyspark.sql import SparkSession

from onefold.core import BadRecord, Terminal
from onefold.sinks import KafkaSink
from onefold.sources import IdsWithin, KafkaSource, OrderedIds
from onefold.spark.flows.flow_writer import FlowWriter
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


def once(rig: Rig, ids: Any, **reading: Any) -> FlowWriter:
    """The records whose id was not seen, in the table `seen`."""
    source = rig.source(format="raw", schema=None, **reading)
    text = pc.field("value").cast(pa.string())
    return rig.pipeline(
        rig.sink(table="seen"),
        source=source,
        change=lambda rows: rows.deduplicate(ids, uid="once").select("partition", "offset", value=text),
    )


def seen(rig: Rig) -> list[tuple[int, str]]:
    return rig.sql('SELECT partition, value FROM seen ORDER BY partition, "offset"')


def values(rig: Rig) -> list[str]:
    return sorted(value for _, value in seen(rig))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before:Decide", "after:Decide"])
def test_repeats_are_dropped_across_batches_restarts_and_replayed_batches(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    put(rig, [f"a:{i}" for i in range(40)])
    put(rig, [*(f"a:{i}" for i in range(30, 50)), *(f"b:{i}" for i in range(20))], partition=1)
    assert len(rig.run(once(rig, OrderedIds(), at_most=40))) == 2
    first = [(0, f"a:{i}") for i in range(40)]
    second = [*((1, f"a:{i}") for i in range(30, 50)), *((1, f"b:{i}") for i in range(20))]
    assert seen(rig) == [*first, *second]

    put(rig, ["a:38", "a:39", "a:40", "a:5", "a:41", "a:40"])
    put(rig, ["b:19", "b:20", "a:49"], partition=1)
    with monkeypatch.context() as patched:
        failing_at(patched, place, crash)
        with pytest.raises(Terminal, match="CrashError"):
            rig.run(once(rig, OrderedIds()))
    put(rig, ["a:41", "a:42"])
    rig.run(once(rig, OrderedIds()))
    assert seen(rig) == [*first, (0, "a:40"), (0, "a:41"), (0, "a:42"), *second, (1, "b:20")]
    rig.assert_nothing_in_doubt()


@pytest.mark.slow
def test_ids_within_a_span_are_remembered_and_what_was_never_seen_is_kept_however_late_it_is(rig: Rig) -> None:
    """By the records' own times, Spark would drop what comes behind its watermark, without a word."""
    ids = IdsWithin("1 hour", id="header:id")
    put(rig, ["x", "y", "x", "z"], in_header=True)
    put(rig, ["y", "v"], partition=1, in_header=True)
    rig.run(once(rig, ids))
    assert values(rig) == ["v", "x", "y", "z"]
    put(rig, ["z", "w", "w", "x"], in_header=True)
    put(rig, ["late", "late"], in_header=True, hours_ago=100)
    rig.run(once(rig, ids))
    assert values(rig) == ["late", "v", "w", "x", "y", "z"]


@pytest.mark.slow
@pytest.mark.parametrize(("ids", "bad"), [(OrderedIds(), None), (IdsWithin("1 hour"), "")])
def test_a_record_without_an_id_ends_the_query_and_is_named(rig: Rig, ids: Any, bad: str | None) -> None:
    put(rig, ["a:1", "a:2", bad, "a:3"], partition=2)
    with raises(BadRecord, "id-not-usable", f"{rig.topic}/2 offset 2: the record's key is"):
        rig.run(once(rig, ids))


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
        placed = rig.source(columns="position", at_most=None)
        with monkeypatch.context() as patched:
            if failing is not None:
                failing_at(patched, failing, crash)
            rig.run(rig.pipeline(sink, name="between", source=placed, store=store), "between")

    with pytest.raises(Terminal, match="CrashError"):
        forward("before:Decide")
    forward(None)
    written = rig.spark.read.format("onefold_kafka").options(
        **{"subscribe": between, "kafka.bootstrap.servers": rig.servers}
    )
    assert written.load().count() == 800

    source = KafkaSource(
        between, bootstrap_servers=rig.servers, format="json", schema=SCHEMA, columns=["position", "key"]
    )
    rows = rig.sink()
    pipeline = rig.pipeline(
        rows, source=source, change=lambda rows: rows.deduplicate(OrderedIds(), uid="once").select("id", "n")
    )
    with monkeypatch.context() as patched:
        failing_at(patched, "after:Decide", crash)
        with pytest.raises(Terminal, match="CrashError"):
            rig.run(pipeline, "reading")
    rig.run(pipeline, "reading")
    rig.assert_exact()
    found = verify(rig.spark, pipeline, rows, ["id"])
    assert found.is_exact, found
