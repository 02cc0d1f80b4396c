"""What another user of the machine gets at the ports of a Spark driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon, Start, daemons, jvm_of, wait_for_rows, write
from harness.stranger import blocks_of, calls_of, ports_of
from harness.support import Rig

pytestmark = [pytest.mark.slow, pytest.mark.servers]
JOB = Path(__file__).parents[1] / "harness" / "callbacks_job.py"


@pytest.fixture
def start() -> Iterator[Start]:
    with daemons() as start:
        yield start


def running(rig: Rig, start: Start, settings: str = "") -> Daemon:
    """A daemon without an API, that has written its first records."""
    rig.put(40)
    file = write(rig)
    with file.open("a") as text:
        text.write(settings)
    daemon = start(file, options=["--listen", "none"])
    wait_for_rows(rig, daemon, 40)
    return daemon


def blocks(daemon: Daemon) -> list[str]:
    """What a stranger reads at the ports of its JVM."""
    jvm = jvm_of(daemon)
    assert jvm is not None
    return [block for port in ports_of(jvm) for block in blocks_of(port)]


@pytest.mark.attack(
    who="another user of the machine",
    does="calls the function of a batch at the port where Spark calls back into its driver, to be its JVM then",
    gets="nothing: it asks for a secret, and the batches go on",
)
def test_nobody_else_calls_the_function_of_a_batch(rig: Rig, start: Start) -> None:
    daemon = running(rig, start)
    ports = ports_of(daemon.driver)  # that of the callbacks, and that of PySpark's accumulators
    assert ports and [calls_of(port) for port in ports] == [[] for _ in ports]
    rig.put(40)
    wait_for_rows(rig, daemon, 80)
    daemon.stop()
    rig.assert_exact()


@pytest.mark.attack(
    who="another user of the machine",
    does="the same in a session whose owner started queries of their own before, or starts them beside onefold's",
    gets="nothing, once onefold was told of the session; and a pipeline is refused where it was not",
)
def test_a_session_that_had_queries_before_is_closed_or_its_pipeline_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "1.json").write_text('{"id": 1}\n')
    path = os.pathsep.join([str(JOB.parents[1]), os.environ.get("PYTHONPATH", "")])
    job = subprocess.run(
        [sys.executable, JOB, tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    assert json.loads(job.stdout.splitlines()[-1]) == {
        "a query that was there before": True,
        "in a batch": "callbacks-open",
        "in a batch of who trusts the machine": "",
        "beside it": "callbacks-open",
        "closed": [],
        "closed twice": [],
        "in a batch then": "",
        "in the next session": [],
    }


@pytest.mark.attack(
    who="another user of the machine",
    does="asks the driver's block server for its tasks, in which the sinks are with their passwords",
    gets="nothing: a session of onefold's own is authenticated (and reads them where its settings say otherwise)",
)
@pytest.mark.parametrize("is_authenticated", [True, False])
def test_nobody_else_reads_the_sinks_out_of_the_drivers_blocks(rig: Rig, start: Start, is_authenticated: bool) -> None:
    daemon = running(rig, start, "" if is_authenticated else 'settings = { "spark.authenticate" = "false" }\n')
    rig.put(40)
    wait_for_rows(rig, daemon, 80)
    assert (blocks(daemon) == []) is is_authenticated
