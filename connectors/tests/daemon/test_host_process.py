"""A host and the drivers that it forks, without a pipeline: what a driver has, how one ends, and what is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from onefold.core.waiting import Wait
from onefold.daemon.hosting.host_process import Forked, HostProcess, modules_of
from onefold.flow import Flow
from onefold.pipeline import Engine, Pipeline
from onefold.sinks import SqlSink
from onefold.sources import FileSource

RESTARTS = 50


class Started:
    """A driver that waits for orders."""

    def __init__(self, host: HostProcess, module: str = "onefold.daemon.hosting.works") -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process: Forked = host.fork([module], theirs)

    def end(self, number: signal.Signals | None = None) -> int | None:
        """By a signal, or since its daemon is gone: how it ended."""
        if number is not None:
            os.kill(self.pid, number)
        else:
            self.socket.close()
        self.process.await_end()
        self.socket.close()
        return self.process.status

    @property
    def pid(self) -> int:
        """Once it is there."""
        if self.process.pid == self.process._host.pid:
            self.process.pid = int.from_bytes(self.process._told.recv(4, socket.MSG_PEEK), "little")
        return self.process.pid


@pytest.fixture
def host() -> Iterator[HostProcess]:
    made = HostProcess(["orders"], "text")
    yield made
    made.kill()
    made.wait()


def until(is_so: Callable[[], bool]) -> None:
    wait = Wait(120)
    while not is_so():
        assert wait.again()


def test_a_driver_of_a_users_own_connectors_needs_no_module(host: HostProcess) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        driver = host.fork([], theirs)
    waiting = threading.Thread(target=driver.await_end)
    waiting.start()
    until(lambda: driver.pid != host.pid)
    ours.close()
    waiting.join(30)
    assert driver.status == 0 and not host.is_gone


def test_a_host_forks_one_driver_after_the_other_and_nothing_is_left_of_any(host: HostProcess) -> None:
    first = Started(host)
    process = psutil.Process(first.pid)
    until(lambda: process.num_threads() > 1)  # it waits for orders, with its own files alone
    inside, files, pids = process.num_fds(), psutil.Process(host.pid).num_fds(), {first.pid}
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    for _ in range(RESTARTS):
        driver = Started(host)
        pids.add(driver.pid)
        assert driver.end(signal.SIGKILL) == -signal.SIGKILL
    last = Started(host)
    until(lambda: psutil.Process(last.pid).num_fds() == inside)
    assert len(pids) == RESTARTS + 1 and psutil.Process(host.pid).num_fds() == files
    assert [each.pid for each in psutil.Process(host.pid).children()] == [last.pid]
    assert last.end() == 0 and not host.is_gone


def test_a_driver_is_another_process_that_is_called_as_its_host_is(host: HostProcess) -> None:
    driver = Started(host)
    assert driver.pid != host.pid
    command = psutil.Process(host.pid).cmdline()
    assert psutil.Process(driver.pid).cmdline() == command and command[-1] == "orders"
    assert os.getpgid(driver.pid) == host.pid
    assert driver.end() == 0


def test_a_driver_that_is_asked_to_end_ends_alone(host: HostProcess) -> None:
    driver = Started(host)
    assert driver.end(signal.SIGTERM) == 0
    assert not host.is_gone and Started(host).end() == 0


@pytest.mark.parametrize("is_running", [True, False])
def test_a_host_that_is_asked_to_end_does_after_its_driver(host: HostProcess, is_running: bool) -> None:
    driver = Started(host)
    assert driver.pid
    if not is_running:
        driver.end()
    os.kill(host.pid, signal.SIGTERM)
    assert host.wait(20) == 0 and host.is_gone
    if is_running:
        driver.process.await_end()
        driver.socket.close()
        assert driver.process.status == 0
    assert Started(host).end() == 0, "none: it has ended as its host has"


def test_a_host_that_is_asked_to_end_says_so_before_its_driver_has_ended(host: HostProcess) -> None:
    driver = Started(host)
    os.kill(driver.pid, signal.SIGSTOP)
    os.kill(host.pid, signal.SIGTERM)
    until(lambda: host.is_gone)
    assert not host.has_ended
    os.kill(driver.pid, signal.SIGCONT)
    driver.process.await_end()
    driver.socket.close()
    assert driver.process.status == 0 and host.wait(60) == 0


def test_a_host_that_is_asked_to_end_while_it_imports_ends_without_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports, asked, forked = tmp_path / "imports", tmp_path / "asked", tmp_path / "forked"
    (tmp_path / "slow_to_import.py").write_text(
        "import os, pathlib, time\n"
        f"os.register_at_fork(before=pathlib.Path({str(forked)!r}).touch)\n"
        f"pathlib.Path({str(imports)!r}).touch()\n"
        f"while not pathlib.Path({str(asked)!r}).exists():\n    time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = HostProcess(["orders"], "text")
    try:
        driver = Started(host, "slow_to_import")
        until(imports.exists)
        os.kill(host.pid, signal.SIGTERM)
        asked.touch()
        assert host.wait(20) == 0
        assert driver.end() == 0, "none: it has ended as its host has"
        assert not forked.exists()
    finally:
        host.kill()


def test_a_host_that_is_killed_takes_its_driver_with_it(host: HostProcess) -> None:
    driver = Started(host)
    process = psutil.Process(driver.pid)
    os.kill(host.pid, signal.SIGKILL)
    driver.process.await_end()
    driver.socket.close()
    assert driver.process.status == -signal.SIGKILL and host.is_gone
    process.wait(20)


def test_a_host_whose_daemon_is_gone_ends_after_its_driver(host: HostProcess) -> None:
    driver = Started(host)
    process = psutil.Process(driver.pid)
    host.close()
    with pytest.raises(subprocess.TimeoutExpired):
        host.wait(0.5)
    assert process.is_running() and driver.end() == 0
    assert host.wait(20) == 0


def test_a_host_with_a_thread_is_not_forked_but_becomes_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = HostProcess(["orders"], "text")
    driver = Started(host)
    until(lambda: host.is_gone)  # it forks no other
    assert not host.has_ended and psutil.Process(host.pid).children() == []
    os.kill(host.pid, signal.SIGUSR1)
    driver.process.await_end()
    driver.socket.close()
    assert driver.process.status == -signal.SIGUSR1


def test_a_host_imports_no_module_of_a_users(tmp_path: Path) -> None:
    class OwnSink(SqlSink):
        pass

    flow = Flow("orders")
    rows = flow.source(FileSource(str(tmp_path), format="json", schema="id long"), uid="orders")
    rows.sink(OwnSink(f"sqlite:///{tmp_path}/out.db", "rows"))
    found = modules_of([Pipeline(flow, runtime=Engine(), directory=str(tmp_path))])
    assert all(name.startswith("onefold.") for name in found)
    assert {name for name in found if not name.startswith("onefold.engine.")} == {FileSource.__module__}
