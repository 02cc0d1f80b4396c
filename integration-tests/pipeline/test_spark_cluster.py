"""A real standalone Spark cluster on this machine: jobs run on its executors, and nothing of it outlives its stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.local import SparkCluster
from onefold.local.process import session_members

pytestmark = [pytest.mark.servers, pytest.mark.only_with_servers("local", reason="it is a test of onefold.local")]

PROGRAM = """
import sys
from pathlib import Path
from onefold.spark.session import spark_session
settings = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
spark = spark_session("test", Path(sys.argv[2]), sys.argv[1], **settings)
def where(batches):
    import os
    import pyarrow as pa
    yield pa.RecordBatch.from_pydict({"session": [os.getsid(0)], "rows": [sum(batch.num_rows for batch in batches)]})
found = spark.range(0, 1000, 1, 4).mapInArrow(where, "session long, rows long").collect()
print(sum(row.rows for row in found), *sorted({row.session for row in found}))
spark.stop()
"""


@pytest.mark.slow
def test_a_job_runs_in_the_workers_sessions_and_stop_ends_all_of_them_held_processes_too(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path / "servers")
    with cluster:
        sessions = cluster.sessions()
        assert len(sessions) == 2
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.url, str(tmp_path / "spark")],
            env={**os.environ, **cluster.environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        rows, *used = map(int, ran.stdout.split())
        assert rows == 1000
        assert set(used) <= set(sessions)
        SparkCluster(tmp_path / "servers").start()  # keeps what runs
        assert cluster.sessions() == sessions
        held = session_members(sessions[0])
        for member in held[1:]:
            os.kill(member.pid, signal.SIGSTOP)
    assert held
    assert not any(session_members(session) for session in sessions)
