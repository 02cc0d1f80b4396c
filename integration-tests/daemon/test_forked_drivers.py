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


def killed(rig: Rig, daemon: Daemon, pid: int) -> float:
    """While its driver stands still, before rows. After how many seconds the next driver has written them."""
    os.kill(daemon.driver, signal.SIGSTOP)
    rig.put(AT_MOST)
    with psycopg.connect(rig.url, autocommit=True) as connection:
        os.kill(pid, signal.SIGKILL)
        began_s = time.monotonic()
        while connection.execute("SELECT count(*) FROM rows").fetchone() != (len(rig.sent),):
            assert time.monotonic() < began_s + 60, daemon.text()
            time.sleep(0.005)
    return time.monotonic() - began_s


def asked_to_end(rig: Rig, daemon: Daemon, pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not psutil.pid_exists(pid), "its end, and that it is waited for")
    rig.put(AT_MOST)
    daemon.until(lambda: len(rows(rig)) == len(rig.sent), "all rows")


@pytest.mark.slow
def test_the_next_driver_is_forked_from_the_same_host_and_rows_are_exact(rig: Rig, start: Start) -> None:
    rig.put(AT_MOST)
    daemon = start(write(rig, SOON, ENGINE, at_most=AT_MOST))
    daemon.until(lambda: len(rows(rig)) == AT_MOST, "rows")
    host, drivers = daemon.host, {daemon.driver}
    files = psutil.Process(host).num_fds()
    for _ in range(KILLS):
        print(f"kill -9 of a driver to the next row: {killed(rig, daemon, daemon.driver):.2f} s")
        drivers.add(daemon.driver)
        assert daemon.host == host, "the next one is forked from what the first one was"
    asked_to_end(rig, daemon, daemon.driver)
    drivers.add(daemon.driver)
    assert daemon.host == host
    assert len(drivers) == KILLS + 2
    assert psutil.Process(host).num_fds() == files
    assert len(psutil.Process(host).children()) == 1, "none is left that nobody has waited for"
    assert daemon.says("host-lost") and daemon.says("host-stopped")
    command = psutil.Process(host).cmdline()
    assert psutil.Process(daemon.driver).cmdline() == command and command[-1] == "orders"
    print(f"kill -9 of a host to the next row: {killed(rig, daemon, host):.2f} s")
    assert daemon.host != host, "it took its driver with it"
    asked_to_end(rig, daemon, host := daemon.host)
    assert daemon.host != host
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
