"""The processes over which the proof is spread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SPREADS = """
import sys, time
from functools import partial
from onefold.core.testing.proof.prove import spread
from test_proof_processes import sleep
if __name__ == "__main__":
    list(spread([partial(sleep, sys.argv[1])] * 2, 2))
"""


def sleep(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(60)


def lives(pid: int) -> bool:
    """Not as a zombie either."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_proof_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "spreads.py").write_text(SPREADS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, tmp_path / "spreads.py", tmp_path / "pids"], env=environment) as proving:
        until_s = time.monotonic() + 60
        while len(pids := [int(path.name) for path in (tmp_path / "pids").iterdir()]) < 2:
            assert time.monotonic() < until_s and proving.poll() is None
            time.sleep(0.05)
        proving.send_signal(signal.SIGKILL)
    while any(map(lives, pids)):
        assert time.monotonic() < until_s
        time.sleep(0.05)
