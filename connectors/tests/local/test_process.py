from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from onefold.local.process import ProcessRef, ServerState, kill_tree, log_tail, spawn, wait_gone
from onefold.local.server_errors import LocalServerError


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def test_a_process_is_alive_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    reference = ProcessRef.of(sleeper.pid)
    assert reference is not None
    assert reference.alive()
    sleeper.kill()
    assert wait_gone([reference], 5)  # nobody has waited for it yet: a zombie counts as gone


def test_another_process_with_the_same_pid_is_not_ours_and_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    stranger = ProcessRef(sleeper.pid, "born at another time")
    assert not stranger.alive()
    stranger.signal(signal.SIGKILL)
    kill_tree(stranger)
    time.sleep(0.1)
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [0, -1])
def test_the_pids_that_mean_many_processes_are_never_a_process(pid: int) -> None:
    assert ProcessRef.of(pid) is None


def test_killing_a_process_ends_its_children_too(tmp_path: Path) -> None:
    process = spawn(["/bin/sh", "-c", "sleep 60 & wait"], log=tmp_path / "log", cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
    child = ProcessRef.of(children[0].pid)
    assert child is not None
    kill_tree(process)
    assert not process.alive()
    assert not child.alive()


def test_what_is_spawned_is_detached_from_us(tmp_path: Path) -> None:
    process = spawn(["sleep", "60"], log=tmp_path / "log", cwd=tmp_path)
    try:
        spawned = psutil.Process(process.pid)
        assert spawned.ppid() != os.getpid()
        assert os.getsid(process.pid) != os.getsid(0)
        if sys.platform == "linux":
            standard = [str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)]
            assert standard == ["/dev/null", str(tmp_path / "log"), str(tmp_path / "log")]
    finally:
        kill_tree(process)


def test_a_program_that_does_not_exist_leaves_its_reason_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with contextlib.suppress(LocalServerError):  # raised if it ended before spawn could look at it
        process = spawn(["/nowhere/at/all"], log=log, cwd=tmp_path)
        assert wait_gone([process], 5)
    assert "/nowhere/at/all" in log_tail(log)


def test_a_state_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    state = ServerState(port=1234, log="x.log", process=ProcessRef(7, "then"), started_at="now", second_port=5)
    state.save(tmp_path / "kafka.json")
    assert ServerState.load(tmp_path / "kafka.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["kafka.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"port": 1, "log": "x", "process": 7}', '{"unknown": 1}'])
def test_a_state_file_that_cannot_be_read_claims_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "kafka.json").write_text(text)
    assert ServerState.load(tmp_path / "kafka.json") is None


def test_the_tail_of_a_log_says_that_the_disk_was_full(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\nFATAL: could not write: No space left on device\n")
    assert "the disk is full" in log_tail(tmp_path / "log")
