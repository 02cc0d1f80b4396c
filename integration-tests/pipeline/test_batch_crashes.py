"""A batch job's process, killed with SIGKILL where it hurts, and run again."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from harness.batch_job import ROWS, RUN, BatchJob
from harness.support import Rig, wait_until
from pyspark.sql import SparkSession

from onefold.spark import register
from onefold.trials.workload.session_processes import SessionProcess

pytestmark = pytest.mark.servers

# Where each way stands when the process dies. The two formats decide in nameless processes of Spark's: either may be
# the one before its decision.
PLACES = {
    "two_phase_1": "before:Decide",
    "two_phase_2": "after:Decide",
    "two_phase_3": "postgres.commit_prepared",
    "staged_1": "staged.merge",
    "format_1": "before:Decide",
    "format_2": "after:Decide",
}


class Held:
    """The process at its failpoints: each way is let go on until it has come to its own place."""

    def __init__(self, job: BatchJob) -> None:
        self.job, directory = job, Path(job.directory)
        self._markers = directory / "held"
        self._markers.mkdir()
        path = directory / "job.json"
        path.write_text(json.dumps(asdict(job)))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        environment |= {"ONEFOLD_FAILPOINT": ",".join(f"{place}#*" for place in sorted({*PLACES.values()}))}
        environment |= {"ONEFOLD_FAILPOINT_DIR": str(self._markers)}
        self.process = SessionProcess(("harness.batch_job", str(path)), directory / "job.log", environment)

    def all_are_there(self) -> bool:
        assert self.process.exit_status is None, self.process.log.read_text()[-5000:]
        left = defaultdict(list)
        for way, place in PLACES.items():
            left["MainThread" if way.startswith("format") else way].append(place.replace(":", "-"))
        for marker in sorted(self._markers.iterdir(), reverse=True):  # "before" is given away first
            place, _, thread = marker.name.rsplit(".", 2)
            if place in left[thread]:
                left[thread].remove(place)
            else:
                marker.unlink()
        return not any(left.values())


@pytest.fixture
def rig(spark: SparkSession, postgres_url: str, tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(spark, "", "", postgres_url, tmp_path)) as rig:
        yield rig


def states(rig: Rig) -> dict[str, list[str]]:
    """The epochs' states, by kind of way and in the order of the ways."""
    epochs = "onefold_sinks.onefold_epochs WHERE state <> 'given_up'"
    rows = rig.sql(f"SELECT pipeline, state FROM {epochs} ORDER BY pipeline, epoch")
    found = defaultdict(list)
    for pipeline, state in rows:
        found[pipeline.rpartition("_")[0]].append(state)
    return found


@pytest.mark.soak
def test_a_job_killed_before_its_decision_after_it_or_in_mid_commit_writes_its_run_once(rig: Rig) -> None:
    job = BatchJob(rig.url, str(rig.directory), tuple(PLACES))
    held = Held(job)
    try:
        wait_until(held.all_are_there, "holding the process everywhere")
    finally:
        held.process.kill()
    assert held.process.exit_status == -9
    assert len(list(rig.directory.glob("*-failed-once"))) == 3, "one task of each kind had to run again"
    before = states(rig)
    assert before["two_phase"] == ["open", "decided", "decided"]
    assert before["staged"] == ["open"]
    assert sorted(before["format"]) == ["decided", "open"]
    counts = {way: len(rig.rows(way)) for way in PLACES}
    assert [counts[f"two_phase_{n}"] for n in (1, 2, 3)] == [0, 0, ROWS // 3]
    assert counts["staged_1"] == 0
    assert sorted(counts[f"format_{n}"] for n in (1, 2)) == [0, ROWS], "its delivery is staged"

    register(rig.spark)
    for attempt in ("second", "third"):
        for way, place in PLACES.items():
            outcome = job.write(job.rows(rig.spark), way)
            assert rig.rows(way) == [(i, 2 * i) for i in range(ROWS)], (attempt, way)
            if outcome is not None:
                undecided = place in ("before:Decide", "staged.merge")
                assert outcome.replayed is not (undecided and attempt == "second"), way
                assert (outcome.run, outcome.rows) == (RUN, ROWS)
        assert {state for found in states(rig).values() for state in found} == {"complete"}
        rig.assert_nothing_in_doubt()
