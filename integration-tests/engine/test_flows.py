"""Flows on the engine, from Kafka into real sinks, undisturbed."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import Any

import pytest
from harness.kafka.reading import Reader

pytestmark = pytest.mark.servers


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("delivery", "workers"), [("two_phase", 1), ("staged", 2), slow("two_phase", 2), slow("staged", 1)]
)
def test_rows_come_once(flows: Any, delivery: str, workers: int) -> None:
    flows.put(1_000)
    job = flows.job(delivery=delivery, workers=workers)
    flows.finish(job)
    flows.assert_exact(job)


@pytest.mark.parametrize(("kind", "workers"), [("numbered", 1), ("totals", 2), slow("numbered", 2), slow("totals", 1)])
def test_state_is_of_all_workers_together(flows: Any, kind: str, workers: int) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, workers=workers)
    flows.finish(job)
    flows.assert_exact(job)


@pytest.mark.slow
def test_a_flow_that_has_ended_writes_nothing_when_it_is_started_again(flows: Any) -> None:
    flows.put(100)
    job = flows.job(kind="totals", workers=2)
    flows.finish(job)
    flows.finish(job)
    flows.assert_exact(job)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_state_goes_on_with_other_workers(flows: Any, state: str) -> None:
    flows.put(1_000)
    for workers in (2, 3, 1):
        job = flows.job(kind="numbered", workers=workers, state=state)
        process = flows.start(job, "before:OpenEpoch#2")
        process.held()
        process.kill()
    flows.finish(job)
    flows.assert_exact(job)


def kill_and_finish(flows: Any, job: Any) -> None:
    """The driver dies before it decides the second epoch; then a worker, when it has prepared the next one."""
    process = flows.start(job, "before:Decide#2")
    process.held()
    process.kill()
    process = flows.start(job, "writers:prepared#2")
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]


@pytest.mark.slow
def test_a_kafka_topic_has_every_row_once_after_kills(flows: Any, kafka_topic: Any) -> None:
    out = kafka_topic(partitions=2)
    flows.put(1_000)
    job = flows.job(delivery="kafka", workers=2, out=out)
    kill_and_finish(flows, job)
    with closing(Reader(flows.servers, out, 2)) as reader:
        assert sorted(reader.ids()) == [number for number, _, _ in flows.sent]


@pytest.mark.slow
def test_an_hbase_table_has_every_row_after_kills(flows: Any, hbase_server: Any) -> None:
    flows.put(1_000)
    job = flows.job(delivery="hbase", workers=2, hbase=hbase_server.servers, out=flows.topic)
    kill_and_finish(flows, job)
    assert flows.of_hbase(hbase_server.servers) == flows.sent
