"""Windows that end with no further record: as time passes while all is silent, or since it is the records' own time."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.kafka.topics import in_order
from harness.support import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RUN = """
import sys
from onefold.flow import Flow, Tumbling, bounded, count, ingestion
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

servers, topic, url, checkpoint, what = sys.argv[1:]
advances = bounded("at", "0 seconds", idle="4 seconds", when_silent="advance")
flow = Flow("going")
source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema="k string, at timestamp")
rows = flow.source(source, uid="rows", watermarks=ingestion() if what == "ingestion" else advances)
rows.key_by("k").window(Tumbling("10 seconds")).aggregate(uid="n", n=count()).sink(PostgresSink(url, "ended"))
flow.run(checkpoint=checkpoint, workers=2)
"""


@pytest.mark.parametrize("what", ["advance", "ingestion"])
def test_a_window_ends_with_no_further_record_also_after_a_kill(
    kafka_server: Any, kafka_topic: Any, postgres_url: str, tmp_path: Path, what: str
) -> None:
    topic, servers = kafka_topic(partitions=2), kafka_server.bootstrap_servers
    producer = in_order(servers)
    for partition, second in enumerate((3, 5)):
        row = json.dumps({"k": "a", "at": f"2026-01-01T00:00:{second:02}Z"})
        producer.produce(topic, row.encode(), partition=partition)
    assert producer.flush(30) == 0
    command = [sys.executable, "-c", RUN, servers, topic, postgres_url, str(tmp_path / "going"), what]

    def sql(query: str) -> list[tuple[Any, ...]]:
        with suppress(psycopg.errors.UndefinedTable), psycopg.connect(postgres_url) as connection:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]
        return []

    first = subprocess.Popen(command)
    try:
        wait_until(lambda: len(sql("SELECT FROM onefold_sinks.onefold_epochs")) > 0, "an epoch has begun")
    finally:
        first.kill()
        first.wait()
    again = subprocess.Popen(command)
    try:
        wait_until(lambda: sum(n for (n,) in sql("SELECT n FROM ended")) >= 2, "the windows have ended")
        again.terminate()
        assert again.wait(60) == 0
    finally:
        again.kill()
        again.wait()
    ended = sql("SELECT k, n FROM ended")
    assert sum(n for _, n in ended) == 2
    assert what == "ingestion" or ended == [("a", 2)]
