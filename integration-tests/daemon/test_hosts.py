"""One daemon with pipelines of both runtimes: what kills one process of it, or takes a server away, changes no row."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.daemon_stubs import Asking
from harness.daemons import SQL, TOTALS_FILE, TOTALS_FLOW, Daemon, Start, jvm_of, producing, write
from harness.support import Rig, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SOON = '[restart]\nstrategy = "fixed_delay"\ndelay_s = 0.5\n'
PATIENT = "patience_s = 5\n"
TABLES = ("plain", "direct", "query")  # of one row a record: on the engine, and twice on Spark
AWAY_S = 120.0


def files(rig: Rig) -> list[Path]:
    """Rows on the engine, state on the engine, and two on Spark, which share a session."""
    (rig.directory / "jobs").mkdir()
    (rig.directory / "jobs" / "totals.py").write_text(TOTALS_FLOW)
    totals = rig.directory / "totals.toml"
    totals.write_text(PATIENT + TOTALS_FILE.format(runtime="engine", topic=rig.topic, servers=rig.servers) + SOON)
    return [
        write(rig, SOON, f'runtime = "engine"\n{PATIENT}', "plain", table="plain"),
        totals,
        write(rig, SOON, PATIENT, "direct", table="direct"),
        write(rig, SQL + SOON, PATIENT, "query", table="query"),
    ]


def counted(rig: Rig) -> dict[str, int]:
    """The records that each pipeline has written."""
    found = {}
    for name in (*TABLES, "totals"):
        is_there = rig.sql(f"SELECT to_regclass('{name}') IS NOT NULL")[0][0]
        what = "coalesce(sum(orders), 0)" if name == "totals" else "count(*)"
        found[name] = int(rig.sql(f"SELECT {what} FROM {name}")[0][0]) if is_there else 0
    return found


def go_on(rig: Rig, daemon: Daemon, *names: str) -> None:
    """Each of these pipelines, or all, writes what comes from here on."""
    sent = len(rig.sent)
    daemon.until(lambda: all(counted(rig)[name] > sent for name in names or (*TABLES, "totals")), "more rows", 300)


def states(ask: Asking) -> dict[str, str]:
    return {one["name"]: one["state"] for one in ask.get("/pipelines")}


def until_state(ask: Asking, is_so: Callable[[dict[str, str]], bool]) -> None:
    wait_until(lambda: is_so(states(ask)), "that state")


def hosts_of(daemon: Daemon) -> dict[str, psutil.Process]:
    """By the names of the pipelines, as they stand in the process's command."""
    return {" ".join(each.cmdline()[6:]): each for each in daemon.hosts()}


def test_whatever_process_is_killed_and_whichever_server_is_away_rows_and_totals_are_exact(
    rig: Rig, start: Start, postgres_server: Any
) -> None:
    paths = files(rig)
    rig.put(200)
    with producing(rig, 10):
        daemon = start(*paths, DATABASE=rig.url)
        ask = Asking(daemon.url)
        go_on(rig, daemon)
        assert hosts_of(daemon).keys() == {"plain", "totals", "direct query"}
        assert set(states(ask).values()) == {"running"}

        jvm = jvm_of(daemon)
        assert jvm is not None
        os.kill(jvm, signal.SIGKILL)
        until_state(ask, lambda found: {found["direct"], found["query"]} <= {"waiting", "starting"})
        assert (states(ask)["plain"], states(ask)["totals"]) == ("running", "running")
        go_on(rig, daemon)

        for name, host in hosts_of(daemon).items():
            host.kill()
            go_on(rig, daemon, *name.split())
        until_state(ask, lambda found: set(found.values()) == {"running"})
        restarts = {one["name"]: one["restarts"] for one in ask.get("/pipelines")}
        assert restarts["plain"] == restarts["totals"] == 1 and restarts["direct"] >= 2 <= restarts["query"]

        before = daemon.members()
        daemon.process.kill()
        daemon = start(*paths, DATABASE=rig.url)  # while the hosts of the one before it end
        ask = Asking(daemon.url)
        go_on(rig, daemon)
        _, alive = psutil.wait_procs(before, 30)
        assert not alive, "the hosts of the daemon that was killed have ended"

        postgres_server.kill()
        try:
            wait_until(lambda: all(one["error"] is not None for one in ask.get("/pipelines")), "the server's errors")
            time.sleep(AWAY_S)
            assert "failed" not in states(ask).values()
        finally:
            postgres_server.start()
        go_on(rig, daemon)
    daemon.until(lambda: set(counted(rig).values()) == {len(rig.sent)}, "all rows", 300)
    until_state(ask, lambda found: set(found.values()) == {"running"})
    members = daemon.members()
    daemon.stop()
    _, alive = psutil.wait_procs(members, 30)
    assert not alive, "nothing is left behind"
    assert all(rig.rows(table) == rig.sent for table in TABLES) and rig.prepared() == []
    wanted: dict[int, tuple[int, int]] = {}
    for id, n in rig.sent:
        orders, ids = wanted.get(n, (0, 0))
        wanted[n] = orders + 1, ids + id
    totals = rig.sql("SELECT n, orders, ids FROM totals ORDER BY n")
    assert [tuple(map(int, row)) for row in totals] == [(n, *wanted[n]) for n in sorted(wanted)]
