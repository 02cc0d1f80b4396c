"""Flows on the engine, from Kafka into real sinks, undisturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.disks import SmallDisk, small_disk
from harness.kafka.reading import Reader
from harness.support import wait_until

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


def test_a_worker_from_json_into_postgres_imports_no_pandas(flows: Any) -> None:
    """It would take a third of a second of every start and recovery."""
    flows.put(100)
    process = flows.start(flows.job(delivery="staged"), "writers:prepared#1")
    libraries = Path(f"/proc/{process.held()[0]}/maps").read_text()
    process.kill()
    assert "pyarrow" in libraries
    assert "pandas" not in libraries


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
        process = flows.start(job, "before:ReadClock#2")
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


@pytest.mark.slow
def test_an_hbase_table_has_every_records_part_in_its_sums_after_kills(flows: Any, hbase_server: Any) -> None:
    flows.put(1_000)
    job = flows.job(delivery="rolling", workers=2, hbase=hbase_server.servers, out=flows.topic)
    kill_and_finish(flows, job)
    mine = [[each for each in flows.sent if each[1] == account] for account in range(7)]
    expected = [(max(id for id, _, _ in of), of[0][1], sum(n for _, _, n in of)) for of in mine]
    assert flows.of_hbase(hbase_server.servers, key="account") == sorted(expected)


@pytest.mark.slow
def test_several_sources_have_their_positions_side_by_side(flows: Any, kafka_topic: Any) -> None:
    other = kafka_topic(partitions=2)
    flows.put(1_000)
    flows.put(500, partitions=2, topic=other)
    job = flows.job(kind="union", workers=2, other=other)
    kill_and_finish(flows, job)
    flows.assert_exact(job)


@pytest.mark.slow
def test_bad_records_become_dead_letters_once_in_the_epoch_of_the_others(flows: Any) -> None:
    flows.put(500)
    flows.produce(flows.topic, [b'{"id":%d' % number for number in range(10)])
    flows.put(500)
    job = flows.job(kind="letters", workers=2)
    kill_and_finish(flows, job)
    flows.assert_exact(job)
    assert flows.sql("SELECT convert_from(value, 'UTF8') FROM letters ORDER BY 1") == [
        (f'{{"id":{number}',) for number in range(10)
    ]


@pytest.mark.slow
def test_broadcast_rows_are_in_every_worker_and_come_back_with_the_state(flows: Any, kafka_topic: Any) -> None:
    other = kafka_topic(partitions=2)
    flows.produce(other, [b'{"account":%d,"factor":%d}' % (a, a + 2) for a in range(7)], partitions=2)
    job = flows.job(kind="ruled", workers=2, other=other, goes_on=True)
    process = flows.start(job)
    flows.until("SELECT max(epoch) FROM onefold_sinks.onefold_epochs WHERE state = 'complete'", [(1,)])
    process.kill()
    flows.assert_rules_are_kept(job)


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(4) as disk:
        yield disk


@pytest.mark.slow
def test_a_full_disk_under_the_snapshots_is_waited_for(flows: Any, disk: SmallDisk) -> None:
    flows.put(1_000)
    job = replace(flows.job(kind="numbered", workers=2), checkpoint=str(disk.folder / "checkpoint"))
    process = flows.start(job, "engine:begun#2")
    process.held()
    disk.fill()
    process.release()
    wait_until(lambda: "state-disk-full" in process.log.read_text(), "a full disk")
    disk.make_room()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    flows.assert_exact(job)


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_flow_after_its_patience_and_the_next_start_is_exact(
    flows: Any, disk: SmallDisk
) -> None:
    flows.put(1_000)
    job = replace(flows.job(kind="numbered", patience_s=2.0), checkpoint=str(disk.folder / "checkpoint"))
    process = flows.start(job, "engine:begun#2")
    process.held()
    disk.fill()
    process.release()
    assert process.wait() == 1
    assert "[state-disk-full]" in process.log.read_text().splitlines()[-1]
    assert len(flows.sql("SELECT id FROM rows")) < 1_000
    disk.make_room()
    flows.finish(job)
    flows.assert_exact(job)
