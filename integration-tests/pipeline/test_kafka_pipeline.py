"""Pipelines on a Kafka source that changes under them; and on Spark's own."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.errors import raises
from harness.kafka.topics import QUIET, make_anew, produce
from harness.support import SCHEMA, Rig
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.jars import NotAvailable, spark_jars
from onefold.core import ConfigError, DataLoss
from onefold.sources import KafkaSource
from onefold.store.job.offset_json import parse_offsets

pytestmark = pytest.mark.servers


@pytest.fixture
def family() -> str:
    return f"family-{uuid.uuid4().hex[:8]}"


@pytest.mark.slow
def test_topics_that_come_to_match_join_a_pipeline_and_one_made_anew_stops_it_also_from_the_ledger(
    rig: Rig, family: str
) -> None:
    source = KafkaSource(
        topics_pattern=f"{family}-.*",
        bootstrap_servers=rig.servers,
        format="json",
        schema=SCHEMA,
        commit_to_group=family,
    )
    make_topic(rig, f"{family}-a")
    produce(rig.servers, f"{family}-a", 3, value=b'{"id":1,"n":1}')
    rig.run(rig.pipeline(source=source))
    make_topic(rig, f"{family}-b")
    produce(rig.servers, f"{family}-b", 2, value=b'{"id":2,"n":2}')
    (outcome,) = rig.run(rig.pipeline(source=source))
    assert rig.rows() == [(1, 1)] * 3 + [(2, 2)] * 2
    assert outcome.record.range.end.topic_ids().keys() == {f"{family}-a", f"{family}-b"}
    both = {(f"{family}-a", 0): 3, (f"{family}-b", 0): 2}
    assert source.broker().group(family, [*both])[1] == both
    other = KafkaSource(topics_pattern="orders-.*", bootstrap_servers=rig.servers, format="json", schema=SCHEMA)
    with raises(ConfigError, "positions-not-read", f"{family}-a"):
        rig.run(rig.pipeline(source=other))
    make_anew(rig.servers, f"{family}-b")
    produce(rig.servers, f"{family}-b", 9, value=b'{"id":3,"n":3}')
    again = KafkaSource.from_options({**source.options(), "startingOffsets": "ledger"})
    with pytest.raises(DataLoss, match=f"{family}-b: the topic was deleted and made anew"):
        rig.run(rig.pipeline(source=again), "new")
    assert len(rig.rows()) == 5


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by pattern"])
def test_a_pipeline_goes_on_without_a_topic_that_it_is_told_to_forget(rig: Rig, family: str, by_name: bool) -> None:
    names = [f"{family}-a", f"{family}-b"]

    def source(kept: list[str], **more: Any) -> KafkaSource:
        which = kept if by_name else []
        more |= {} if by_name else {"topics_pattern": f"{family}-.*"}
        return KafkaSource(which, bootstrap_servers=rig.servers, format="json", schema=SCHEMA, **more)

    for name in names:
        make_topic(rig, name)
        produce(rig.servers, name, 2, value=b'{"id":1,"n":1}')
    rig.run(rig.pipeline(source=source(names)))
    make_anew(rig.servers, names[1])
    for name in names:
        produce(rig.servers, name, 3, value=b'{"id":2,"n":2}')
    (outcome,) = rig.run(rig.pipeline(source=source(names[:1], forget_topics=names[1:])))
    assert rig.rows() == [(1, 1)] * 4 + [(2, 2)] * 3
    assert outcome.record.range.end.topics() == {names[0]: {0: 5}, names[1]: {0: 2}}


def make_topic(rig: Rig, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": rig.servers, **QUIET})
    admin.create_topics([NewTopic(name, 1)])[name].result(20)


@pytest.mark.slow
def test_sparks_progress_tells_where_the_topics_end(rig: Rig) -> None:
    rig.put(40)
    writer = rig.writer()
    query = rig.start(writer, rig.stream(rig.source(at_most=30)))
    rig.finish(writer, query)
    (told,) = query.recentProgress[0]["sources"]
    latest, end = (parse_offsets([told[name]]) for name in ("latestOffset", "endOffset"))
    assert sum(latest.topics()[rig.topic].values()) == 40
    assert 30 <= sum(end.topics()[rig.topic].values()) <= 33
    assert end.topic_ids() == latest.topic_ids()


@pytest.fixture
def connector(spark: SparkSession) -> None:
    try:
        jars = spark_jars()
    except NotAvailable as error:
        pytest.skip(str(error))
    for jar in jars:
        spark.sql(f"ADD JAR '{jar}'")


@pytest.mark.slow
@pytest.mark.usefixtures("connector")
def test_a_dataframe_of_sparks_own_kafka_source_is_written_through_the_epoch_writer(rig: Rig) -> None:
    options = {"kafka.bootstrap.servers": rig.servers, "subscribe": rig.topic, "startingOffsets": "earliest"}
    records = rig.spark.readStream.format("kafka").options(**options).load()
    df = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")
    for count, forgets in ((50, True), (10, False)):
        rig.put(count)
        writer = rig.writer()
        rig.finish(writer, rig.start(writer, df))
        writer.close()
        if forgets:
            rig.forget_commit(0)
    assert [outcome.replayed for outcome in rig.outcomes] == [False, True, False]
    rig.assert_exact()
