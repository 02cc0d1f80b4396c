"""A host whose drivers are killed, on real servers: the next one is forked, and rows and errors are what they were."""

from __future__ import annotations

import os
import signal
import time

import psutil
import psycopg
import pytest
from harness.daemons import Daemon, Start, rows, write
from harness.support import Rig, wait_until
from sqlalchemy.engine import make_url

from onefold.core import ConfigError

pytestmark = pytest.mark.servers

ENGINE = 'runtime = "engine"\npatience_s = 5\n'
SOON = '[restart]\nstrategy = "fixed_delay"\ndelay_s = 0.01\n'
KILLS, AT_MOST = 3, 200


def ended(rig: Rig, daemon: Daemon, pid: int, number: signal.Signals) -> float:
    """By that signal. After how many seconds its successor has written an epoch."""
    os.kill(pid, number)
    began_s = time.monotonic()
    wait_until(lambda: not psutil.pid_exists(pid), 60, "its end, and that it is waited for")
    with psycopg.connect(rig.url, autocommit=True) as connection:

        def written() -> int:
            ((count,),) = connection.execute("SELECT count(*) FROM rows")
            return int(count)

        goal = written() + 2 * AT_MOST + 1  # what it had decided, its successor finishes
        rig.put(3 * AT_MOST)
        daemon.until(lambda: written() >= goal, "rows", 60)
    return time.monotonic() - began_s


@pytest.mark.slow
def test_the_next_driver_is_forked_from_the_same_host_and_rows_are_exact(rig: Rig, start: Start) -> None:
    rig.put(AT_MOST)
    daemon = start(write(rig, SOON, ENGINE, at_most=AT_MOST))
    daemon.until(lambda: len(rows(rig)) == AT_MOST, "rows")
    host, drivers = daemon.host, {daemon.driver}
    files = psutil.Process(host).num_fds()
    for number in (*[signal.SIGKILL] * KILLS, signal.SIGTERM):
        took_s = ended(rig, daemon, daemon.driver, number)
        print(f"{number.name} of a driver to the rows of the next: {took_s:.2f} s")
        drivers.add(daemon.driver)
        assert daemon.host == host, "the next one is forked from what the first one was"
    assert len(drivers) == KILLS + 2
    assert psutil.Process(host).num_fds() == files
    assert len(psutil.Process(host).children()) == 1, "none is left that nobody has waited for"
    assert daemon.says("host-lost") and daemon.says("host-stopped")
    command = psutil.Process(host).cmdline()
    assert psutil.Process(daemon.driver).cmdline() == command and command[-1] == "orders"
    for number in (signal.SIGKILL, signal.SIGTERM):
        took_s = ended(rig, daemon, host, number)
        print(f"{number.name} of a host to the rows of the next: {took_s:.2f} s")
        assert daemon.host != host, "it took its driver with it"
        host = daemon.host
    daemon.until(lambda: len(rows(rig)) >= len(rig.sent), "all rows")
    members = daemon.members()
    daemon.stop()
    _, alive = psutil.wait_procs(members, 30)
    assert not alive and rows(rig) == rig.sent and rig.prepared() == []


def test_a_driver_with_a_wrong_password_says_so_and_ends_its_daemon(rig: Rig, start: Start) -> None:
    file = write(rig, SOON, f'{ENGINE}store = "sqlite:///{rig.directory}/store.db"')
    url = make_url(rig.url).set(password="wrong").render_as_string(hide_password=False)
    file.write_text(file.read_text().replace(rig.url, url))
    daemon = start(file)
    assert daemon.wait() == ConfigError.exit_code
    assert daemon.says("postgres-connection-refused") and not daemon.says("host-lost"), daemon.text()
