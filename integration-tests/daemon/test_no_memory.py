"""`onefold run` where memory runs out, in Spark's JVM or in its workers: a clear end, and the next start is exact."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import psutil
import pytest
from harness.daemons import SQL, Daemon, Start, is_whole, jvm_of, producing, rows, wait_for_rows, write
from harness.support import Rig

from onefold.core import Retriable

pytestmark = [pytest.mark.servers, pytest.mark.slow]
HUGE = (
    "[[steps]]\nsql = \"SELECT id, n + 0 * length(repeat('x', 400000000 + CAST(id AS INT))) AS n FROM source\"\n"
    'schema = "id long, n long"\n'
)
# Spark finds its dead daemons one after the other, each a failure in a row: by default waits grow to a minute.
SOON = '[restart]\nstrategy = "fixed_delay"\ndelay_s = 0.5\n'


def test_a_jvm_without_memory_ends_the_process_as_what_may_pass_and_the_next_start_is_exact(
    rig: Rig, start: Start
) -> None:
    rig.put(1000)
    path = write(rig, f'[restart]\nstrategy = "none"\n{HUGE}')
    path.write_text(f'{path.read_text()}settings = {{ "spark.driver.memory" = "512m" }}\n')
    ended = start(path)
    assert ended.wait() == Retriable.exit_code, ended.text()
    assert ended.says("jvm-gone") and "spark.driver.memory" in ended.text()
    assert rows(rig) == []
    path.write_text(path.read_text().replace(HUGE, SQL))
    again = start(path)
    wait_for_rows(rig, again, 1000)
    again.stop()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def test_a_worker_without_memory_is_told_as_such_and_its_batch_runs_again(rig: Rig, start: Start) -> None:
    rig.put(1000)
    marker = rig.directory / "had-none"
    (rig.directory / "functions.py").write_text(
        "from pathlib import Path\n\n\n"
        "def eats(batch):\n"
        f"    marker = Path({str(marker)!r})\n"
        "    if batch.num_rows and not marker.exists():\n"
        "        marker.touch()\n"
        "        bytearray(1 << 60)\n"
        "    yield batch\n"
    )
    daemon = start(write(rig, '[[steps]]\nmap_batches = "functions.py:eats"\n'))
    wait_for_rows(rig, daemon, 1000)
    assert marker.exists() and daemon.says("worker-out-of-memory")
    daemon.stop()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def workers_of(daemon: Daemon) -> list[psutil.Process]:
    """The Python processes below its JVM."""
    jvm = jvm_of(daemon)
    assert jvm is not None
    return psutil.Process(jvm).children(recursive=True)


def test_workers_that_the_system_kills_again_and_again_lose_nothing(rig: Rig, start: Start) -> None:
    daemon = start(write(rig, SOON, at_most=5000))
    with producing(rig):
        for _ in range(3):
            wait_for_rows(rig, daemon, len(rows(rig)) + 1)
            for worker in workers_of(daemon):
                with suppress(psutil.NoSuchProcess):
                    worker.send_signal(signal.SIGKILL)
            time.sleep(1)
    wait_for_rows(rig, daemon, len(rig.sent))
    daemon.stop()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)
