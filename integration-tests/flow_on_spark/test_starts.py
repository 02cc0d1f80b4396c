"""Starts of flows on Spark: what they forgot is noticed, and each way out that an error names leads on."""

from __future__ import annotations

from typing import Any

import pytest
from harness.support import Rig

from onefold.core import ConfigError, Terminal
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RECOVER = (
    "call flow.recover(spark=spark, checkpoint=..., adopt_ledger=True), then start with a new checkpoint directory"
)


class Started:
    """A flow without state, from the rig's topic into a table."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def flow(self, name: str = "kept", *topics: str, **settings: Any) -> Flow:
        flow, rig = Flow(name), self.rig
        source = KafkaSource(
            topics or (rig.topic,), bootstrap_servers=rig.servers, format="json", schema="id long, n long", **settings
        )
        flow.source(source, uid="in").sink(PostgresSink(rig.url, name))
        return flow

    def run(self, flow: Flow, checkpoint: str = "first") -> None:
        query = flow.start(self.rig.spark, checkpoint=self.checkpoint(checkpoint), trigger={"availableNow": True})
        self.rig.pipelines.append(query.writer)
        try:
            assert query.await_termination(120)
        finally:
            query.writer.close()

    def checkpoint(self, name: str) -> str:
        return str(self.rig.directory / name)

    def ids(self, table: str = "kept") -> list[int]:
        return [id for (id,) in self.rig.sql(f"SELECT id FROM {table} ORDER BY id")]


def test_a_flow_whose_bookkeeping_is_gone_is_refused_and_begins_anew_with_an_empty_table(rig: Rig) -> None:
    started = Started(rig)
    rig.put(100)
    started.run(started.flow())
    rig.sql("DROP SCHEMA onefold_sinks CASCADE")
    rig.put(10)
    with pytest.raises(Terminal) as refused:
        started.run(started.flow())
    assert refused.value.code == "checkpoint-ahead"
    assert "start with a new, empty checkpoint directory and an empty table" in refused.value.message
    assert len(started.ids()) == 100
    rig.sql("TRUNCATE kept")
    started.run(started.flow(), "second")
    assert started.ids() == [*range(110)]


def test_a_flow_whose_store_is_lost_adopts_its_ledger_and_goes_on_exactly(rig: Rig) -> None:
    started = Started(rig)
    rig.put(100)
    started.run(started.flow())
    for table in ("store", "pipelines", "epochs", "runs", "pins"):
        rig.sql(f"DROP TABLE onefold_sinks.onefold_{table}")
    rig.put(10)
    with pytest.raises(Terminal) as refused:
        started.run(started.flow())
    assert refused.value.code == "another-store"
    assert f"{RECOVER} and starting_offsets='ledger'" in refused.value.message
    flow = started.flow(starting_offsets="ledger")
    flow.recover(spark=rig.spark, checkpoint=started.checkpoint("first"), adopt_ledger=True)
    started.run(flow, "second")
    assert started.ids() == [*range(110)]


def test_a_flow_whose_table_was_dropped_goes_on_without_its_rows_where_the_user_says_so(rig: Rig) -> None:
    started = Started(rig)
    rig.put(100)
    started.run(started.flow())
    rig.sql("DROP TABLE kept")
    rig.put(10)
    with pytest.raises(Terminal) as refused:
        started.run(started.flow())
    assert "call flow.recover(spark=spark, checkpoint=..., accept_targets=True) once" in refused.value.message
    started.flow().recover(spark=rig.spark, checkpoint=started.checkpoint("first"), accept_targets=True)
    started.run(started.flow())
    assert started.ids() == [*range(100, 110)]


def test_another_begin_and_other_topics_are_refused(rig: Rig, kafka_topic: Any) -> None:
    started = Started(rig)
    rig.put(100)
    started.run(started.flow(starting_offsets="latest"))
    with pytest.raises(ConfigError) as refused:
        started.run(started.flow())
    assert refused.value.code == "starting-offsets-settled"
    assert refused.value.message.endswith("give the flow another name, empty tables, and a new checkpoint directory")
    started.run(started.flow("other"), "other")
    assert started.ids("other") == [*range(100)]
    with pytest.raises(ConfigError) as refused:
        started.run(started.flow("other", kafka_topic(partitions=1)), "other")
    assert refused.value.code == "positions-not-read"
