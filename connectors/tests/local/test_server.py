"""The life of any server, shown on one that only sleeps."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.local import LocalServer, LocalServerError
from onefold.local.process import ProcessRef, ServerState, kill_tree, spawn


class Sleeper(LocalServer):
    name = "sleeper"
    command = ("sleep", "60")
    launches = 0

    def _prepare(self, progress: object) -> None:
        pass

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        del before
        type(self).launches += 1
        process = spawn(self.command, log=self.log_path, cwd=self.home)
        return ServerState(port=port, log=str(self.log_path), process=process)

    def _is_ready(self, port: int) -> bool:
        return port > 0

    def _end(self, process: ProcessRef) -> None:
        kill_tree(process)

    def _address(self, port: int) -> str:
        return f"127.0.0.1:{port}"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    server = Sleeper(tmp_path)
    yield server
    server.kill()


def test_a_started_server_runs_until_it_is_stopped(sleeper: Sleeper) -> None:
    started = sleeper.start()
    assert started.running
    assert started.detail == "started"
    assert sleeper.status().pid == started.pid
    assert sleeper.stop()
    assert not sleeper.status().running
    assert sleeper.status().detail == "stopped"
    assert not sleeper.stop()


def test_a_running_server_is_kept(sleeper: Sleeper, tmp_path: Path) -> None:
    first = sleeper.start()
    second = Sleeper(tmp_path).start()
    assert second.pid == first.pid
    assert second.detail == "was already running"


def test_a_running_server_is_not_moved_to_another_port(sleeper: Sleeper, tmp_path: Path) -> None:
    port = sleeper.start().port
    with raises(LocalServerError, "server-already-running", f"{port}"):
        Sleeper(tmp_path, port=1).start()
    assert sleeper.status().running


def test_after_the_death_of_its_process_a_server_starts_anew_on_its_port(sleeper: Sleeper) -> None:
    first = sleeper.start()
    sleeper.kill()
    assert sleeper.status().detail == f"process {first.pid} has died"
    second = sleeper.start()
    assert f"({first.pid}) had died, its data are kept" in second.detail
    assert second.port == first.port
    assert second.pid != first.pid


def test_a_process_that_is_dying_when_it_is_found_is_replaced(sleeper: Sleeper, tmp_path: Path) -> None:
    class Late(Sleeper):
        asked = 0

        def _is_ready(self, port: int) -> bool:
            Late.asked += 1
            if Late.asked == 1:
                sleeper.kill()
                return False
            return port > 0

    first = sleeper.start()
    second = Late(tmp_path).start()
    assert second.pid != first.pid
    assert f"({first.pid}) had died" in second.detail


def test_a_server_moves_if_its_port_was_taken_meanwhile(sleeper: Sleeper) -> None:
    port = sleeper.start().port
    assert port is not None
    sleeper.stop()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        moved = sleeper.start()
    assert moved.port != port
    assert f"on another port than before ({port})" in moved.detail


def test_a_foreign_process_that_has_the_pid_of_the_state_file_is_left_alone(sleeper: Sleeper) -> None:
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(0.05)  # the kernel counts starts in hundredths of a second
    try:
        started = sleeper.start()
        sleeper.kill()
        path = sleeper.directory / "sleeper.json"
        state = ServerState.load(path)
        assert state is not None
        assert state.process is not None
        reused = dataclasses.replace(state.process, pid=foreign.pid)
        dataclasses.replace(state, process=reused).save(path)
        assert not sleeper.status().running
        sleeper.kill()
        assert not sleeper.stop()
        dataclasses.replace(state, process=reused).save(path)
        assert sleeper.start().pid not in (foreign.pid, started.pid)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_starts_at_the_same_time_start_one_server(tmp_path: Path) -> None:
    class Counted(Sleeper):
        launches = 0

    try:
        with ThreadPoolExecutor(4) as pool:
            pids = {status.pid for status in pool.map(lambda _: Counted(tmp_path).start(), range(4))}
        assert len(pids) == 1
        assert Counted.launches == 1
    finally:
        Counted(tmp_path).kill()


def test_a_server_that_dies_while_it_starts_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    class Dying(Sleeper):
        command = ("sh", "-c", "echo no such setting; exit 3")

        def _is_ready(self, port: int) -> bool:
            return port == 0

    with raises(LocalServerError, "server-ended"):
        Dying(tmp_path).start()
    assert not Dying(tmp_path).status().running


def test_an_interrupted_start_leaves_no_process(tmp_path: Path) -> None:
    seen: list[ProcessRef] = []

    class Interrupted(Sleeper):
        def _is_ready(self, port: int) -> bool:
            state = ServerState.load(self.directory / "sleeper.json")
            assert state is not None
            assert state.port == port
            assert state.process is not None
            seen.append(state.process)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted(tmp_path).start()
    assert not seen[0].alive()


def test_a_context_ends_what_it_started_and_keeps_what_it_found(sleeper: Sleeper, tmp_path: Path) -> None:
    with sleeper:
        with Sleeper(tmp_path):
            pass
        assert sleeper.status().running
    assert not sleeper.status().running


def test_a_context_ends_what_it_started_also_if_it_was_asked_to_start_again(sleeper: Sleeper) -> None:
    with sleeper:
        assert sleeper.start().detail == "was already running"
    assert not sleeper.status().running


def test_a_server_that_was_never_started_has_no_port_and_leaves_no_trace(tmp_path: Path) -> None:
    server = Sleeper(tmp_path / "new")
    assert not server.status().running
    assert not server.stop()
    with raises(LocalServerError, "server-never-started", f"{tmp_path}"):
        _ = server.port
    assert not (tmp_path / "new").exists()


def test_a_folder_where_nothing_can_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(LocalServerError, "not-a-folder"):
        Sleeper(tmp_path / "file" / "below").start()


def test_a_server_lives_on_when_the_process_that_started_it_is_interrupted(tmp_path: Path) -> None:
    process = spawn(["sleep", "60"], log=tmp_path / "log", cwd=tmp_path)
    try:
        os.kill(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C
        assert process.alive()
    finally:
        kill_tree(process)
