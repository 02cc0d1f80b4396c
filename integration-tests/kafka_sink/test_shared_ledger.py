"""Pipelines from before each had a ledger topic of its own: their ledger is in the one that all shared."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.kafka.life import SCHEMA, batches
from harness.kafka.reading import Reader
from harness.lives import Epochs

from onefold.core import ConfigError
from onefold.sinks import KafkaSink
from onefold.sinks.kafka.naming import ledger_topic

pytestmark = pytest.mark.servers


def test_a_pipeline_with_a_ledger_in_the_shared_topic_says_so_and_goes_on_there(
    kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, servers, pipeline = kafka_topic(partitions=2), kafka_server.bootstrap_servers, f"p{uuid.uuid4().hex[:8]}"
    store = f"sqlite:///{tmp_path / 'store.db'}"
    before = KafkaSink(topic, bootstrap_servers=servers, ledger="onefold_progress")
    with Epochs(before, SCHEMA, pipeline=pipeline, store=store) as life:
        life.run(*batches(0))
    for _ in range(2):  # the first try makes the pipeline's own topic, which stays empty
        with pytest.raises(ConfigError, match="Go on with ledger='onefold_progress'"):
            Epochs(KafkaSink(topic, bootstrap_servers=servers), SCHEMA, pipeline=pipeline, store=store)
    with Epochs(before, SCHEMA, pipeline=pipeline, store=store) as life:
        assert life.at == 1
        life.run(*batches(1))
    reader = Reader(servers, topic, 2)
    assert sorted(reader.ids()) == list(range(20))
    reader.close()


def test_a_sink_with_a_ledger_in_its_pipelines_topic_is_not_led_astray_by_records_in_the_shared_one(
    kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, servers, pipeline = kafka_topic(partitions=2), kafka_server.bootstrap_servers, f"p{uuid.uuid4().hex[:8]}"
    sink = KafkaSink(topic, bootstrap_servers=servers)
    with Epochs(sink, SCHEMA, pipeline=pipeline, store=f"sqlite:///{tmp_path / 'store.db'}") as life:
        life.run(*batches(0))
    shared = KafkaSink(topic, bootstrap_servers=servers, ledger="onefold_progress")
    with Epochs(shared, SCHEMA, pipeline=pipeline, store=f"sqlite:///{tmp_path / 'other.db'}"):
        pass  # binds a ledger of another store there
    with Epochs(sink, SCHEMA, pipeline=pipeline, store=f"sqlite:///{tmp_path / 'store.db'}") as life:
        assert life.at == 1


def test_each_pipeline_has_a_topic_of_its_own_and_kafka_takes_its_name() -> None:
    names = ["orders", "orders_eu", "orders.eu", "orders-eu", "Bestellungen-ü", "-x", "x" * 100, "ü" * 100]
    topics = [ledger_topic(name) for name in names]
    assert topics[:2] == ["onefold_progress-orders", "onefold_progress-orders_eu"]
    assert len({topic.replace(".", "_") for topic in topics}) == len(names)
    assert all(len(topic) <= 249 and topic.isascii() and "." not in topic for topic in topics)
