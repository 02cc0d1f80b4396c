"""Formats of batches into each kind of destination: their driver killed past the decision or before it, and their
executors on a cluster killed in the middle of a stage."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from harness.batch_destinations import Destination, destination_of
from harness.batch_job import PARTITIONS, ROWS, RUN, BatchJob
from harness.support import wait_until
from pyspark.sql import SparkSession

from onefold.spark import register
from onefold.testing import Servers
from onefold.trials.workload.session_processes import SessionProcess

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]
KINDS = ["onefold_postgres", "onefold_kafka", "onefold_hbase", "onefold_sql sqlite", "onefold_sql mariadb"]
WRITTEN = [(i, 2 * i) for i in range(ROWS)]


@pytest.fixture
def destinations(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Destination]:
    """Each with its way of the job, whose rows fail once."""
    made = {kind: destination_of(kind, request, tmp_path) for kind in KINDS}
    return {f"format {kind.replace(' ', '-')}_1": destination for kind, destination in made.items()}


def job_of(destinations: dict[str, Destination], directory: Path, **more: str) -> BatchJob:
    formats = {way: (destination.format, destination.options) for way, destination in destinations.items()}
    return BatchJob("", str(directory), tuple(destinations), formats, **more)


def started(job: BatchJob, **environment: str) -> SessionProcess:
    path = Path(job.directory) / "job.json"
    path.write_text(json.dumps(asdict(job)))
    there = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    return SessionProcess(("harness.batch_job", str(path)), Path(job.directory) / "job.log", there)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before:Decide", "after:Decide"])
def test_a_driver_that_is_killed_there_has_written_its_run_once_when_it_is_run_again(
    spark: SparkSession, destinations: dict[str, Destination], tmp_path: Path, place: str
) -> None:
    held = tmp_path / "held"
    held.mkdir()
    job = job_of(destinations, tmp_path)
    process = started(job, ONEFOLD_FAILPOINT=f"{place}#*", ONEFOLD_FAILPOINT_DIR=str(held))

    def all_are_held() -> bool:
        assert process.exit_status is None, process.log.read_text()[-5000:]
        return len([*held.iterdir()]) == len(destinations)

    try:
        wait_until(all_are_held, "holding every way")
    finally:
        process.kill()
    assert {path.name for path in tmp_path.glob("*-failed-once")} == {f"{way}-failed-once" for way in destinations}

    register(spark)
    for attempt in ("second", "third"):
        for way, destination in destinations.items():
            rows = job.rows_at_the_second_try(spark, way)
            # Only what writes through, and was not decided, needs the same rows again.
            is_free = place == "after:Decide" or attempt == "third"
            destination.save(rows.selectExpr("id", "n + 1 AS n") if is_free else rows, RUN)
            assert destination.rows() == WRITTEN, (attempt, way)


@pytest.mark.slow
@pytest.mark.only_with_servers("local", reason="the executors are processes of this machine")
def test_on_a_cluster_whose_executors_are_killed_and_whose_stages_run_again_each_run_is_written_once(
    destinations: dict[str, Destination], onefold_servers: Servers, tmp_path: Path
) -> None:
    with onefold_servers.spark_cluster() as cluster:
        job = job_of(destinations, tmp_path, master=cluster.url)
        process = started(job, **cluster.environment)
        try:
            status = process.wait(500)
        finally:
            process.kill()
        assert status == 0, process.log.read_text()[-5000:]
    assert {path.name for path in tmp_path.glob("*-executor")} == {f"{way}-executor" for way in destinations}
    shuffled = {way: len([*tmp_path.glob(f"{way}-shuffled-*")]) for way in destinations}
    assert max(shuffled.values()) > PARTITIONS, "a stage ran again: its executor took the shuffle's files along"
    for way, destination in destinations.items():
        assert destination.rows() == WRITTEN, way
