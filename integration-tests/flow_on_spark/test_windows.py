"""Windows and timers of event time on Spark, from Kafka into Postgres: exact after crashes, restarts and silence."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from harness.kafka.topics import in_order
from harness.late_windows import assert_exact
from harness.support import Rig, wait_until
from psycopg.errors import UndefinedTable

from onefold.flow import Flow, Tumbling, count, monotonic
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize("place", ["before:Decide#3", "after:Decide#3", "before:Commit#3"])
def test_windows_are_exact_after_a_driver_is_killed(flows: Any, place: str) -> None:
    flows.put(1_500)
    job = flows.job(kind="late", runtime="spark")
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(job)
    assert_exact(flows, job)


def test_case_77_windows_go_on_after_a_restart_and_end_with_a_start_that_has_nothing_to_read(flows: Any) -> None:
    flows.put(450)
    job = flows.job(kind="windows", runtime="spark", goes_on=True)
    flows.finish(job)
    flows.put(250)
    flows.finish(job)
    epochs = "SELECT count(*) FROM onefold_sinks.onefold_epochs"
    assert flows.sql("SELECT max(window_end) FROM rows") == [(600,)], "what is there now is no end"
    flows.finish(replace(job, goes_on=False))
    flows.assert_exact(job)
    ended = flows.sql(epochs)
    flows.finish(replace(job, goes_on=False))
    assert flows.sql(epochs) == ended


def test_a_silent_partition_is_not_waited_for(rig: Rig, kafka_topic: Any) -> None:
    topic = kafka_topic(partitions=2)
    producer = in_order(rig.servers)
    for partition, second in ((0, 25), (1, 5), (1, 7)):
        row = json.dumps({"k": "a", "at": f"2026-01-01T00:00:{second:02}Z"})
        producer.produce(topic, row.encode(), partition=partition)
    assert producer.flush(30) == 0
    flow = Flow("silent", max_parallelism=4)
    source = KafkaSource(topic, bootstrap_servers=rig.servers, format="json", schema="k string, at timestamp")
    rows = flow.source(source, uid="rows", watermarks=monotonic("at", idle="15 seconds"))
    sums = rows.key_by("k").window(Tumbling("10 seconds")).aggregate(uid="sums", n=count())
    sums.sink(PostgresSink(rig.url, "silent"))
    rig.spark.conf.set("spark.sql.shuffle.partitions", "2")

    def has_fired() -> bool:
        with suppress(UndefinedTable):
            return rig.sql("SELECT k, n FROM silent") == [("a", 2)]
        return False

    query = flow.start(rig.spark, checkpoint=str(rig.directory / "silent"), trigger={"processingTime": "1 second"})
    rig.pipelines.append(query.writer)
    try:
        wait_until(has_fired, "the window has fired")
        assert query.drain(60)
    finally:
        query.query.stop()
        query.writer.close()
