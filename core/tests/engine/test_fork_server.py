"""The process that forks workers."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.errors import raises

from onefold.core.errors import OutOfResources
from onefold.engine.workers.fork_server import ForkServer

WAIT_S = 30.0
FILES = Path("/proc/self/fd")


@contextmanager
def answer_of(work: Any, links: int = 0) -> Iterator[socket.socket]:
    """The driver's side of the control socket of a worker that does `work`."""
    with closing(ForkServer(work, lambda: None)) as fork_server:
        mine, theirs = socket.socketpair()
        pairs = [socket.socketpair() for _ in range(links)]
        mine.settimeout(WAIT_S)
        with mine:
            fork_server.fork(theirs, [pair[0] for pair in pairs])
            for _, other in pairs:
                other.close()
            yield mine


def terminate_a_process(control: socket.socket, links: list[socket.socket]) -> None:
    del links
    ends = set()
    for _ in range(50):  # at whatever point of its start that comes
        process = multiprocessing.get_context("fork").Process(target=signal.pause)
        process.start()
        process.terminate()
        process.join(WAIT_S / 2)
        ends.add(process.exitcode)
    with subprocess.Popen(["sleep", str(WAIT_S)]) as program:
        program.terminate()
    control.sendall(str({*ends, program.returncode}).encode())


def test_a_process_that_a_users_function_starts_can_be_terminated() -> None:
    with answer_of(terminate_a_process) as answer:
        assert answer.recv(100) == b"{-15}"


def outlive_signals(control: socket.socket, _: list[socket.socket]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    control.sendall(b"alive")


def test_a_worker_outlives_the_signals_that_end_a_driver_in_good_order() -> None:
    with answer_of(outlive_signals) as answer:
        assert answer.recv(100) == b"alive"


def count_links(control: socket.socket, links: list[socket.socket]) -> None:
    control.sendall(str(len({os.fstat(link.fileno()).st_ino for link in links})).encode())


def test_a_worker_gets_more_sockets_than_one_message_carries() -> None:
    with answer_of(count_links, links=300) as answer:
        assert answer.recv(100) == b"300"


def leave_a_process_behind(control: socket.socket, _: list[socket.socket]) -> None:
    if os.fork() == 0:
        signal.alarm(int(WAIT_S))
        signal.pause()
    control.sendall(b"forked")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_a_worker_forked_does_not_hide_the_workers_end() -> None:
    with answer_of(leave_a_process_behind) as answer:
        assert answer.recv(100) == b"forked"
        assert answer.recv(100) == b""


ANSWERED = """
import signal, socket, sys
from contextlib import closing
from onefold.engine.workers.fork_server import ForkServer
{first}
def work(control, _):
    print("said")
    control.sendall(b"alive")
    control.recv(1)
with closing(ForkServer(work, lambda: None)) as fork_server:
    mine, theirs = socket.socketpair()
    pid = fork_server.fork(theirs, [])
    assert mine.recv(100) == b"alive"
    assert fork_server.end(pid) == -9
"""


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_workers_run_where_standard_streams_are_closed(closed: str) -> None:
    command = f'exec "$0" -c "$1" {closed}'
    code = ANSWERED.format(first="")
    assert subprocess.run(["sh", "-c", command, sys.executable, code], timeout=WAIT_S).returncode == 0


def test_workers_are_ended_where_the_drivers_parent_ignores_the_ends_of_children() -> None:
    code = ANSWERED.format(first="signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S).returncode == 0


def test_where_no_process_can_be_forked_that_may_pass_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    files = sorted(FILES.iterdir())
    with raises(OutOfResources, "fork-server-not-started"):
        ForkServer(terminate_a_process, lambda: None)
    assert sorted(FILES.iterdir()) == files
