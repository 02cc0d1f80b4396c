"""compose/stack/daemon: the daemon's supervisor in its container, with an `onefold` that only ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "compose/stack/daemon"
FOR_SOMEBODY = (2, 65, 70, 73, 76, 77, 78)


def supervised(folder: Path, onefold: str) -> subprocess.Popen[str]:
    """The script, with this `onefold` and a `sleep` that takes no time on PATH. Each start is a line of `starts`."""
    for name, text in {"onefold": f"echo started >> {folder}/starts\n{onefold}", "sleep": ":"}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen([SCRIPT], env=environment, stderr=subprocess.PIPE, text=True)


def starts(folder: Path) -> int:
    file = folder / "starts"
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_for_starts(folder: Path, count: int) -> None:
    deadline_s = time.monotonic() + 20
    while starts(folder) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, *FOR_SOMEBODY])
def test_what_somebody_has_to_look_at_is_not_started_again(tmp_path: Path, code: int) -> None:
    process = supervised(tmp_path, f"exit {code}")
    process.communicate(timeout=20)
    assert process.returncode == code
    assert starts(tmp_path) == 1


@pytest.mark.parametrize("end", ["exit 75", "exit 1", "kill -KILL $$"])
def test_a_failure_that_may_pass_is_started_again_until_one_comes_that_does_not(tmp_path: Path, end: str) -> None:
    process = supervised(tmp_path, f'[ "$(wc -l < {tmp_path}/starts)" -gt 2 ] && exit 73\n{end}')
    _, said = process.communicate(timeout=20)
    assert process.returncode == 73
    assert starts(tmp_path) == 3
    assert said.count("is started again in 10 s") == 2


@pytest.mark.parametrize("code", [0, 75])
def test_a_stop_waits_for_the_daemon_and_does_not_start_it_again(tmp_path: Path, code: int) -> None:
    ends_in_time = f"trap 'touch {tmp_path}/ended; exit {code}' TERM\ntouch {tmp_path}/ready"
    process = supervised(tmp_path, f"{ends_in_time}\nwhile true; do /bin/sleep 0.05; done")
    wait_for_starts(tmp_path, 1)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert (tmp_path / "ended").exists()
    assert process.returncode == code
    assert starts(tmp_path) == 1
