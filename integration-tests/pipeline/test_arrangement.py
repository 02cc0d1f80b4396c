"""Sinks that need an epoch's rows in different tasks, in one pipeline on Spark: each gets all of them as it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.support import Rig, through_spark
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import KafkaSource, OrderedIds

pytestmark = pytest.mark.servers

PLACES = ("kafka_topic", "kafka_partition", "kafka_offset")
Topic = Callable[..., str]


@pytest.fixture
def many_tasks(rig: Rig) -> Iterator[None]:
    """Small data, too, comes out of a shuffle in several tasks."""
    settings = {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    before = {name: rig.spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        rig.spark.conf.set(name, value)
    yield
    for name, value in before.items():
        rig.spark.conf.set(name, value) if value is not None else rig.spark.conf.unset(name)


class Keyed:
    """A keyed topic, and what its deduplicating reader sees."""

    def __init__(self, rig: Rig, topic: str) -> None:
        self.rig, self.topic = rig, topic

    def sink(self, **more: object) -> KafkaSink:
        settings = {"delivery": "keyed", "id": PLACES, **more}
        return KafkaSink(self.topic, bootstrap_servers=self.rig.servers, **settings)  # type: ignore[arg-type]

    def assert_seen(self, count: int) -> None:
        source = KafkaSource(
            self.topic,
            bootstrap_servers=self.rig.servers,
            format="json",
            schema="id long, n long",
            columns=["position", "key"],
        )
        reader = self.rig.pipeline(
            self.rig.sink("staged", "seen"),
            name="reader",
            source=source,
            change=lambda rows: rows.deduplicate(OrderedIds(), uid="once").select("id", "n"),
        )
        self.rig.run(reader, "reader")
        assert self.rig.rows("seen") == self.rig.sent[:count]


@pytest.fixture
def keyed(rig: Rig, kafka_topic: Topic) -> Keyed:
    return Keyed(rig, kafka_topic(partitions=1))


def upserting(rig: Rig, table: str, key: str | tuple[str, ...]) -> PostgresSink:
    return rig.sink("two_phase", table, mode="upsert", key=key, order="n")


@pytest.mark.slow
@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("change", [lambda rows: rows, through_spark], ids=["plain", "through Spark"])
def test_a_keyed_topic_beside_tables_with_keys_of_their_own_is_read_whole(
    rig: Rig, keyed: Keyed, change: Callable[[Any], Any]
) -> None:
    rig.put(2000)
    placed = upserting(rig, "placed", ("kafka_partition", "kafka_offset"))
    sinks = [upserting(rig, "rows", "id"), keyed.sink(), placed]
    source = rig.source(at_most=700, columns=["position"])
    rig.run(rig.pipeline(*sinks, source=source, change=change, store=rig.sqlite))
    for table in ("rows", "placed"):
        assert rig.rows(table) == rig.sent
    rig.assert_nothing_in_doubt()
    keyed.assert_seen(2000)


@pytest.mark.slow
@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize(
    "mixed",
    [
        lambda df: df.repartition(8),
        lambda df: df.repartition(8, "id"),
        lambda df: df.coalesce(2),
        lambda df: df.repartition(5).coalesce(2),
    ],
    ids=["shuffled", "by id", "coalesced", "shuffled and coalesced"],
)
def test_a_keyed_topic_of_rows_that_were_mixed_before_is_read_whole(
    rig: Rig, keyed: Keyed, mixed: Callable[[DataFrame], DataFrame]
) -> None:
    rig.put(2000)
    pipeline = rig.pipeline(
        keyed.sink(),
        source=rig.source(at_most=None, columns=["position"]),
        change=lambda rows: rows.spark_dataframe(mixed, rows.schema),
        store=rig.sqlite,
    )
    rig.run(pipeline)
    keyed.assert_seen(2000)


@pytest.mark.slow
@pytest.mark.usefixtures("many_tasks")
def test_rows_that_are_to_stay_in_place_do_so_beside_a_sink_that_moves_them(rig: Rig, keyed: Keyed) -> None:
    rig.put(2000)
    sinks = [upserting(rig, "rows", "id"), keyed.sink(id="at")]
    select = "SELECT id, n, concat(kafka_topic, '/', kafka_partition, ':', kafka_offset) AS at FROM source"
    pipeline = rig.pipeline(
        *sinks,
        source=rig.source(at_most=None, columns=["position"]),
        change=lambda rows: rows.spark_sql(select, "id long, n long, at string"),
        store=rig.sqlite,
    )
    rig.run(pipeline)
    rig.assert_exact()
    keyed.assert_seen(2000)


@pytest.mark.slow
def test_rows_that_their_user_has_cached_stay_so(rig: Rig, keyed: Keyed) -> None:
    def rows() -> DataFrame:
        return rig.spark.range(20).selectExpr("id", "id AS n", "concat('a:', id) AS at")

    rows().cache()
    pipeline = rig.writer(upserting(rig, "rows", "id"), keyed.sink(id="at"), store=rig.sqlite)
    pipeline.write_batch(rows(), "day 1")
    pipeline.close()
    assert rows().storageLevel != StorageLevel.NONE
    rows().unpersist()


@pytest.mark.slow
@pytest.mark.usefixtures("many_tasks")
def test_a_keyed_topic_of_other_ids_is_read_whole_as_well(rig: Rig, keyed: Keyed) -> None:
    rig.put(2000)
    rig.run(rig.pipeline(keyed.sink(id=("id", "n")), store=rig.sqlite))
    reader = KafkaSource(keyed.topic, bootstrap_servers=rig.servers, format="json", schema="id long, n long")
    sink = rig.sink("staged", "seen")
    rig.run(rig.pipeline(sink, name="seen", source=reader), "seen")
    assert rig.rows("seen") == rig.sent
