"""Sessions in any time zone: sinks get the instants that the records have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.kafka.reading import Reader
from harness.support import Rig
from pyspark.sql import functions as F

from onefold.sinks import KafkaSink, SqlSink

pytestmark = [pytest.mark.slow, pytest.mark.servers]
ZONE = "spark.sql.session.timeZone"
# In Berlin one hour was there twice in this night, and another was not there in spring.
TIMES = ["2025-10-26T00:30:00Z", "2025-10-26T01:30:00Z", "2026-03-29T00:59:59.999999Z", "1969-12-31T23:59:59Z"]
SCHEMA = "id long, at timestamp"


@pytest.fixture(params=["Etc/UTC", "Europe/Berlin", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, rig: Rig) -> Iterator[str]:
    before = rig.spark.conf.get(ZONE)
    rig.spark.conf.set(ZONE, request.param)
    yield str(request.param)
    rig.spark.conf.set(ZONE, str(before))


def instants() -> list[tuple[int, dt.datetime]]:
    return [(number, dt.datetime.fromisoformat(text)) for number, text in enumerate(TIMES)]


def in_topic(rig: Rig, topic: str) -> list[dict[str, Any]]:
    reader = Reader(rig.servers, topic, 1)
    try:
        return sorted(reader.rows(), key=lambda row: row.get("id", 0))  # a dead letter has none
    finally:
        reader.close()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows,
        lambda rows: rows.spark_dataframe(lambda df: df.withColumn("same", F.col("at")), f"{SCHEMA}, same timestamp"),
    ],
    ids=["plain", "through Spark"],
)
def test_every_sink_gets_the_instants_of_the_records_and_so_do_dead_letters(
    rig: Rig, kafka_topic: Callable[..., str], change: Callable[[Any], Any]
) -> None:
    topic, letters = kafka_topic(partitions=1), kafka_topic(partitions=1)
    values = [b'{"id":%d,"at":"%s"}' % (number, text.encode()) for number, text in enumerate(TIMES)]
    rig.put_values([*values, b"no JSON"])
    sinks = [
        KafkaSink(topic, bootstrap_servers=rig.servers, key="id"),
        rig.sink(),
        SqlSink(f"sqlite:///{rig.directory / 'rows.db'}", "rows", name="sqlite"),
    ]
    dead = KafkaSink(letters, bootstrap_servers=rig.servers)
    source = rig.source(schema=SCHEMA, on_error="dead_letter")
    rig.run(rig.pipeline(*sinks, source=source, change=change, dead_letters=dead, store=sinks[2].store_url()))
    assert [(row["id"], dt.datetime.fromisoformat(row["at"])) for row in in_topic(rig, topic)] == instants()
    assert rig.sql("SELECT id, at FROM rows ORDER BY id") == instants()
    assert len(in_topic(rig, letters)) == 1


@pytest.mark.usefixtures("zone")
def test_instants_within_columns_and_in_a_batch_run_are_the_same(rig: Rig, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(partitions=1)
    rows = rig.spark.createDataFrame([(number, text) for number, text in enumerate(TIMES)], "id long, text string")
    at = F.to_timestamp("text")
    df = rows.select("id", at.alias("at"), F.array(F.struct(at.alias("at"))).alias("list"))
    sink = KafkaSink(topic, bootstrap_servers=rig.servers, key="id")
    rig.writer(sink, store=rig.sqlite).write_batch(df, "run")
    found = in_topic(rig, topic)
    assert [(row["id"], dt.datetime.fromisoformat(row["at"])) for row in found] == instants()
    assert [row["list"] for row in found] == [[{"at": row["at"]}] for row in found]
