"""Workers and drivers of flows, killed and paused at named places: what comes of it is exact, or a named error."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

pytestmark = [pytest.mark.servers, pytest.mark.slow]

END_S = 10.0
OUTAGE_S = 8.0  # longer than all restarts of a flow together, by default


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, END_S)
    assert alive == []


_WORKER_PLACES = ("writers:written#2", "writers:prepared#2", "before:StoreState#3")
_KEPT = [("numbered", "memory"), *((kind, state) for kind in ("totals", "windows") for state in ("memory", "rocksdb"))]
_KILLED_WORKERS = [
    *((*kept, "two_phase", place) for kept in _KEPT for place in _WORKER_PLACES),
    *(
        ("numbered", "memory", "direct", place)
        for place in (*_WORKER_PLACES[:2], "before:prepare#2", "after:prepare#2")
    ),
]


@pytest.mark.parametrize(("kind", "state", "delivery", "place"), _KILLED_WORKERS)
def test_a_worker_that_is_killed_is_replaced_and_every_row_comes_once(
    flows: Any, kind: str, state: str, delivery: str, place: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, state=state, delivery=delivery, workers=2)
    process = flows.start(job, place)
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "[worker-lost]" in process.log.read_text()
    flows.assert_exact(job)


_DRIVER_PLACES = ("engine:begun#2", "before:Decide#2", "after:Decide#2", "before:WriteLedger#3")
_KILLED = [
    *((*kept, "two_phase", place) for kept in _KEPT for place in _DRIVER_PLACES),
    *(("numbered", "memory", "direct", place) for place in (*_DRIVER_PLACES, "staged.merge#2", "before:Commit#2")),
    ("windows", "rocksdb", "direct", "before:Commit#2"),
]


@pytest.mark.parametrize(("kind", "state", "delivery", "place"), _KILLED)
def test_a_driver_that_is_killed_takes_its_workers_with_it_and_the_next_start_is_exact(
    flows: Any, kind: str, state: str, delivery: str, place: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, state=state, delivery=delivery, workers=2)
    process = flows.start(job, place)
    process.held()
    workers = process.workers()
    assert len(workers) == 3
    process.kill()
    assert_gone(workers)
    other = 3 if (kind, delivery) == ("windows", "two_phase") else 2
    flows.finish(replace(job, at_most=250, workers=other))  # in epochs of another length
    flows.assert_exact(job)


def test_a_driver_whose_fork_server_is_killed_ends_by_name_with_its_workers_and_the_next_start_is_exact(
    flows: Any,
) -> None:
    flows.put(1_000)
    job = flows.job(kind="totals", workers=2)
    process = flows.start(job, "engine:begun#2")
    process.held()
    workers = process.workers()
    (fork_server,) = psutil.Process(process.process.pid).children()
    fork_server.kill()
    process.release()
    assert process.wait() == 1
    assert "Retriable" in process.log.read_text() and "[fork-server-lost]" in process.log.read_text()
    assert_gone(workers)
    flows.finish(job)
    flows.assert_exact(job)


@pytest.mark.parametrize("kind", ["totals", "windows"])
@pytest.mark.parametrize("delay_s", [0.0, 0.3, 0.9])
def test_a_kill_at_any_time_leaves_every_row_once(flows: Any, kind: str, delay_s: float) -> None:
    flows.put(4_000)
    job = flows.job(kind=kind, workers=2, at_most=100)
    process = flows.start(job, "engine:begun#2")
    process.held()
    workers = process.workers()
    process.release()
    time.sleep(delay_s)
    process.kill()
    assert_gone(workers)
    flows.finish(replace(job, at_most=250))  # in epochs of another length
    flows.assert_exact(job)


@pytest.mark.parametrize("place", ["before:Decide#2", "before:ReadClock#3", "after:WriteLedger#8"])  # of the last epoch
def test_a_paused_driver_that_wakes_is_fenced_and_decides_nothing(flows: Any, place: str) -> None:
    flows.put(1_000)
    job = flows.job(kind="numbered", workers=2)
    process = flows.start(job, place)
    process.held()
    flows.finish(replace(job, at_most=250))  # in epochs of another length
    process.release()
    assert process.wait() == 1
    assert "onefold.core.errors.Fenced" in process.log.read_text()
    flows.assert_exact(job)


@pytest.mark.parametrize("delivery", ["two_phase", "staged", "direct"])
def test_a_server_that_is_down_in_the_middle_of_an_epoch_is_waited_for_and_is_no_restart(
    flows: Any, postgres_server: Any, delivery: str
) -> None:
    flows.put(1_000)
    # A crash empties the stage: where rows were staged by then, the workers write them once more.
    job = flows.job(kind="numbered", delivery=delivery, workers=2, restarts=int(delivery == "staged"))
    process = flows.start(job, "engine:begun#2")
    process.held()
    postgres_server.kill()
    try:
        process.release()
        time.sleep(OUTAGE_S)
        assert process.process.poll() is None, process.log.read_text()[-3000:]
    finally:
        postgres_server.start()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    flows.assert_exact(job)


def test_a_server_that_stays_down_ends_the_flow_after_its_patience_by_its_own_error(
    flows: Any, postgres_server: Any
) -> None:
    flows.put(1_000)
    job = flows.job(kind="totals", workers=2, patience_s=2.0)
    process = flows.start(job, "engine:begun#2")
    process.held()
    postgres_server.kill()
    try:
        process.release()
        assert process.wait() == 1
    finally:
        postgres_server.start()
    assert "onefold.core.errors." in (last := process.log.read_text().splitlines()[-1])
    assert "[restarts-exhausted]" not in last
    assert "starts again" not in process.log.read_text()
    flows.finish(job)
    flows.assert_exact(job)


def test_a_table_that_is_altered_under_the_flow_is_opened_anew_and_every_row_comes_once(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(workers=2, restarts=1)
    process = flows.start(job, "before:ReadClock#2")
    process.held()
    with psycopg.connect(flows.url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '20s'")
        connection.execute("ALTER TABLE rows ALTER n TYPE numeric(20, 0)")
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "starts again" in process.log.read_text() and "[table-altered]" in process.log.read_text()
    flows.assert_exact(job)


def test_a_driver_that_is_terminated_ends_with_its_epoch(flows: Any) -> None:
    flows.put(3_000)
    job = flows.job(kind="totals", workers=2, at_most=100)
    process = flows.start(job, "engine:begun#3")
    process.held()
    workers = process.workers()
    process.process.terminate()
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert_gone(workers)
    assert flows.sql("SELECT count(*), max(epoch) FROM onefold_sinks.onefold_epochs WHERE state = 'complete'") == [
        (3, 3)
    ]
    flows.finish(job)
    flows.assert_exact(job)


def stop_after_two_epochs(flows: Any, job: Any) -> list[Path]:
    """The files of the snapshots that the flow's state is now."""
    process = flows.start(job, "after:ReadClock#3")
    process.held()
    process.kill()
    folder = Path(job.checkpoint)
    return [path for path in folder.rglob("*-*") if path.is_file()]


def test_a_snapshot_that_is_gone_is_a_named_error_and_nothing_is_written(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(kind="totals", workers=2)
    for path in stop_after_two_epochs(flows, job):
        path.unlink()
    process = flows.start(job)
    assert process.wait() == 1
    assert "[state-file-missing]" in process.log.read_text()


def test_a_snapshot_that_is_cut_is_a_named_error_and_nothing_is_written(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(kind="totals", workers=2)
    for path in stop_after_two_epochs(flows, job):
        path.write_bytes(path.read_bytes()[:-20])
    process = flows.start(job)
    assert process.wait() == 1
    assert "[state-file-damaged]" in process.log.read_text()
