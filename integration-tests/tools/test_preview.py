"""`onefold preview` of topics and tables: it reads, and neither server keeps anything of it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from harness.definitions import piped
from harness.errors import raises
from harness.kafka.topics import in_order

from onefold.core import Retriable
from onefold.operate.preview import preview
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource, PostgresSource

pytestmark = pytest.mark.servers


def sql(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def test_the_first_records_of_a_topics_partitions_are_read_and_nothing_is_kept(
    kafka: Any, kafka_topic: Callable[..., str], postgres_url: str
) -> None:
    topic, producer = kafka_topic(partitions=3), in_order(kafka.bootstrap_servers)
    for number in range(90):
        producer.produce(topic, b'{"id":%d}' % number if number else b"no JSON", partition=number % 3)
    producer.flush()
    settings: dict[str, Any] = {
        "format": "json",
        "schema": "id long",
        "commit_to_group": "preview",
        "on_error": "dead_letter",
    }
    source = KafkaSource(topic, bootstrap_servers=kafka.bootstrap_servers, **settings)
    rows, dead = (PostgresSink(postgres_url, table=table, delivery="two_phase") for table in ("rows", "dead"))
    found = preview(piped("p", source=source, sinks=[rows], dead_letters=dead), 12)
    assert found.read == {"source": 12}
    assert sorted(found.sinks[0].rows["id"].to_pylist()) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert found.sinks[1].rows["value"].to_pylist() == [b"no JSON"]
    assert sql(postgres_url, "SELECT relname FROM pg_class WHERE relname LIKE 'onefold%'") == []


def test_a_table_is_read_and_no_session_of_it_is_left(postgres_url: str) -> None:
    sql(postgres_url, "CREATE TABLE old (id bigint PRIMARY KEY, n numeric(8, 2))")
    sql(postgres_url, "INSERT INTO old VALUES (1, 2.5), (2, NULL)")
    source = PostgresSource(postgres_url, table="old")
    found = preview(piped("p", source=source, sinks=[PostgresSink(postgres_url, table="new")]), 20)
    assert found.sinks[0].rows.to_pylist() == [{"id": 1, "n": Decimal("2.50")}, {"id": 2, "n": None}]
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert sql(postgres_url, sessions) == [(0,)]


def test_a_broker_that_is_away_is_said() -> None:
    source = KafkaSource("orders", bootstrap_servers="127.0.0.1:1", format="json", schema="id long", timeout_s=1.0)
    with raises(Retriable, "kafka-unreachable"):
        preview(piped("p", source=source, sinks=[PostgresSink("postgresql://nobody/x", table="t")]), 20)
