"""Kafka to Kafka on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.kafka.reading import Reader, open_transactions, stable_and_end
from harness.support import Rig, crash, failing_at, through_spark

from onefold.core import Terminal
from onefold.sinks import KafkaSink
from onefold.spark.flows.flow_writer import FlowWriter

pytestmark = pytest.mark.servers
PARTITIONS = 3


def assert_written(rig: Rig, topic: str) -> None:
    """Every record once, where a read_committed reader is; and nothing is left open."""
    reader = Reader(rig.servers, topic, PARTITIONS)
    assert sorted((row["id"], row["n"]) for row in reader.rows()) == rig.sent
    assert {message.key() for message in reader.messages} == {b"%d" % record[0] for record in rig.sent}
    reader.close()
    assert [name for name in open_transactions(rig.servers) if f"/{topic}/" in name] == []
    assert all(stable == end for stable, end in stable_and_end(rig.servers, topic, PARTITIONS))


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda rows: rows, through_spark], ids=["plain", "through Spark"])
def test_a_topic_and_a_table_get_each_record_once_though_the_driver_dies_past_the_decision(
    rig: Rig, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
) -> None:
    """The topic's transactions live shorter than the table's, so they are committed first."""
    topic = kafka_topic(partitions=PARTITIONS)

    def pipeline() -> FlowWriter:
        return rig.pipeline(rig.sink(), KafkaSink(topic, bootstrap_servers=rig.servers, key="id"), change=change)

    rig.put(700)
    failing_at(monkeypatch, "before:Commit", crash)
    with pytest.raises(Terminal, match="Crash"):
        rig.run(pipeline())
    outcomes = rig.run(pipeline())
    assert outcomes[-1].record.sinks == (topic, "rows")
    assert_written(rig, topic)
    rig.assert_exact()


@pytest.mark.slow
def test_a_topic_with_its_store_elsewhere_gets_each_record_once(rig: Rig, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    rig.put(700)
    for _ in range(2):
        rig.run(rig.pipeline(KafkaSink(topic, bootstrap_servers=rig.servers, key="id"), store=rig.sqlite))
        assert_written(rig, topic)
        rig.put(100)
    rig.sent = rig.sent[:-100]
