"""A batch job's process, killed with SIGKILL where it hurts, and run again until nothing is left to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from batch_job import ROWS, WAYS, BatchJob
from pyspark.sql import SparkSession
from support import Rig, wait_until

from onefold.connectors.workload.processes import SessionProcess

pytestmark = pytest.mark.servers
REACH_S_MAX = 120.0


class Jobs:
    """One process after another, each with a driver, its JVM and its workers, in a session of its own."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.number = rig, 0

    def start(self, runs: tuple[int, ...], held: str = "") -> SessionProcess:
        self.number += 1
        directory = self.rig.directory
        self.markers = directory / f"held-{self.number}"
        self.markers.mkdir()
        self.job = BatchJob(self.rig.url, str(directory), runs)
        path = directory / f"job-{self.number}.json"
        path.write_text(json.dumps(asdict(self.job)))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        environment |= {"ONEFOLD_FAILPOINT": held, "ONEFOLD_FAILPOINT_DIR": str(self.markers)}
        return SessionProcess("batch_job", path, directory / f"job-{self.number}.log", environment)

    def kill_at(self, held: str, *runs: int) -> None:
        """Let all three ways come to a place that is held, then kill the process there."""
        process = self.start(runs, held)
        try:
            wait_until(
                lambda: len(list(self.markers.iterdir())) == len(WAYS) or process.exit_status is not None,
                REACH_S_MAX,
                f"reaching {held}",
            )
            assert process.exit_status is None, process.log.read_text()[-5000:]
        finally:
            process.kill()
        assert process.exit_status == -9

    def finish(self, *runs: int) -> None:
        process = self.start(runs)
        try:
            assert process.wait(REACH_S_MAX) == 0, process.log.read_text()[-5000:]
        finally:
            process.kill()

    @property
    def states(self) -> dict[str, list[str]]:
        """Of each way's epochs, given-up ones left out."""
        query = "SELECT pipeline, state FROM onefold_epochs WHERE state <> 'given_up' ORDER BY epoch"
        rows = self.rig.sql(query)
        return {way: [state for pipeline, state in rows if pipeline == way] for way in WAYS}

    def counts(self) -> dict[str, int]:
        return {way: int(self.rig.sql(f"SELECT count(*) FROM {way}")[0][0]) for way in WAYS}

    def staged(self) -> set[str]:
        return {way for (way,) in self.rig.sql("SELECT pipeline FROM onefold_sinks.onefold_staged")}


def test_a_job_killed_before_and_after_its_decision_and_in_mid_commit_has_written_each_run_once(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    rig = Rig(spark, "", "", postgres_url, tmp_path)
    jobs = Jobs(rig)

    jobs.kill_at("before:Decide#*", 0)
    assert jobs.states == {way: ["open"] for way in WAYS}
    assert jobs.counts() == dict.fromkeys(WAYS, 0)
    assert len(rig.prepared()) >= 3 and jobs.staged() == {"staged", "format"}
    assert len(list(tmp_path.glob("*-0-failed-once"))) == 3, "a task of each failed, and ran again"

    jobs.kill_at("after:Decide#*", 0)
    assert jobs.states == {way: ["decided"] for way in WAYS}
    assert jobs.counts() == {"two_phase": 0, "staged": ROWS, "format": ROWS}
    assert len(rig.prepared()) == 3, "what was not decided, recovery removed"

    jobs.kill_at("postgres.commit_prepared#*,staged.merge#*", 0, 1)
    assert jobs.states == {"two_phase": ["decided"], "staged": ["complete", "open"], "format": ["complete", "open"]}
    assert jobs.counts() == {"two_phase": ROWS // 3, "staged": ROWS, "format": ROWS}
    assert len(rig.prepared()) == 2, "one of three is committed"

    jobs.finish(0, 1, 0, 1)
    said = [json.loads(line) for line in jobs.job.outcomes.read_text().splitlines()]
    for way in ("two_phase", "staged"):
        mine = [(outcome["run"], outcome["rows"], outcome["replayed"]) for outcome in said if outcome["way"] == way]
        assert mine[-4:] == [
            ("run 0", ROWS, True),
            ("run 1", ROWS, False),
            ("run 0", ROWS, True),
            ("run 1", ROWS, True),
        ]
    for way in WAYS:
        assert rig.rows(way) == [(i, 2 * i) for i in range(2 * ROWS)]
    assert jobs.states == {way: ["complete", "complete"] for way in WAYS}
    rig.assert_nothing_in_doubt()
