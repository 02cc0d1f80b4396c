"""Rows that depend on the order of their records, in sinks that show them at once: an epoch runs again as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.kafka.reading import Reader
from harness.kafka.topics import in_order
from harness.ordered_job import OrderedJob

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RECORDS, ACCOUNTS, PARTITIONS = 240, 6, 2


def put(servers: str, topic: str) -> None:
    producer = in_order(servers)
    for n in range(RECORDS):
        value = json.dumps({"id": n, "account": n // PARTITIONS % ACCOUNTS})
        producer.produce(topic, value.encode(), partition=n % PARTITIONS)
    assert producer.flush(30) == 0


def assert_runs_again_as_it_was(job: OrderedJob) -> None:
    """Killed when a worker has written, refused with more workers, and completed with the other partition late."""
    killed = job.finish(strikes=True, late=0)
    assert "[restarts-exhausted]" in killed.stderr, killed.stderr[-2000:]
    refused = job.finish(workers=3)
    assert "[worker-count]" in refused.stderr and "workers=2" in refused.stderr, refused.stderr[-2000:]
    done = job.finish(late=1)
    assert done.returncode == 0, done.stderr[-2000:]


def every_second(rows: list[tuple[int, int, int]]) -> None:
    """Rows are id, account, number: of each account half of its records, with the numbers 1, 3, 5..."""
    of = RECORDS // ACCOUNTS
    assert sorted((account, number) for _, account, number in rows) == [
        (account, number) for account in range(ACCOUNTS) for number in range(1, of + 1, 2)
    ]
    assert len({id_ for id_, _, _ in rows}) == RECORDS // 2


def test_every_repeat_in_a_keyed_topic_is_the_same_record(
    kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    servers = kafka_server.bootstrap_servers
    job = OrderedJob(servers, kafka_topic(partitions=PARTITIONS), str(tmp_path / "checkpoint"), kafka_topic())
    put(servers, job.topic)
    assert_runs_again_as_it_was(job)
    records = Reader(servers, job.out, 4).read()
    repeats: dict[Any, set[Any]] = {}
    for record in records:
        repeats.setdefault(record.key(), set()).add(record.value())
    assert len(records) > len(repeats), "nothing was written twice"
    assert {len(values) for values in repeats.values()} == {1}
    rows = [json.loads(value) for (value,) in repeats.values()]
    every_second([(row["id"], row["account"], row["number"]) for row in rows])


def test_an_hbase_table_has_no_row_of_the_attempt_that_was_killed_alone(
    kafka_server: Any, kafka_topic: Callable[..., str], hbase_server: Any, tmp_path: Path
) -> None:
    servers, out = kafka_server.bootstrap_servers, f"ordered{tmp_path.name}"
    job = OrderedJob(
        servers, kafka_topic(partitions=PARTITIONS), str(tmp_path / "checkpoint"), out, hbase_server.servers
    )
    put(servers, job.topic)
    assert_runs_again_as_it_was(job)
    mapping = TableMapping.of(out, "id integer", {"account": "f:account integer", "number": "f:number integer"})
    parts = HBaseTable(HBaseSettings(job.hbase), out).scan(b"", b"", mapping.cell_columns)
    rows = [row for part in parts for row in mapping.decode(part.keys, part.values).to_pylist()]
    every_second([(row["id"], row["account"], row["number"]) for row in rows])
