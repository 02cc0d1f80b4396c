"""A pipeline that is changed while its daemon lives: refused while it runs, and done once it was stopped."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from harness.daemons import Daemon, Start, rows, verify, wait_for_rows, write
from harness.support import Rig

from onefold.core import ConfigError
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = [pytest.mark.servers, pytest.mark.slow]
ONEFOLD = Path(sys.executable).with_name("onefold")
SQLITE = """\
name = "files"
checkpoint = "files.checkpoint"
[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
[[sinks]]
kind = "sql"
url = "sqlite:///{directory}/rows.db"
table = "rows"
[spark]
master = "local[2]"
"""


def onefold(*words: str | Path) -> tuple[int, str]:
    done = subprocess.run([ONEFOLD, *words], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def operated(daemon: Daemon, what: str, state: str) -> None:
    code, said = onefold(what, "--url", daemon.url)
    assert code == 0 and said.endswith(f": {state}\n"), said


def refused(*words: str | Path) -> str:
    code, said = onefold(*words)
    assert code == ConfigError.exit_code and "[pipeline-may-run]" in said, said
    return said


def test_positions_of_a_stopped_pipeline_move_while_its_daemon_lives_and_it_goes_on_from_there_and_is_exact(
    rig: Rig, start: Start
) -> None:
    rig.put(40)
    path = write(rig)
    daemon = start(path)
    wait_for_rows(rig, daemon, 40)
    move = ("positions", path, "--set", "latest", "--yes")
    assert f"process {daemon.driver} of this machine runs it. Nothing was moved" in refused(*move)
    rig.put(4)
    wait_for_rows(rig, daemon, 44)  # it runs on

    operated(daemon, "stop", "stopped")
    rig.put(40)
    code, said = onefold(*move)
    assert code == 0 and "the next start of pipeline orders begins there" in said, said
    operated(daemon, "restart", "running")
    rig.put(40)
    wait_for_rows(rig, daemon, 84)
    refused(*move)
    operated(daemon, "stop", "stopped")
    code, said = onefold("savepoint", "create", path, "--name", "s")
    assert code == 0, said
    operated(daemon, "restart", "running")
    daemon.stop()
    assert rows(rig) == [pair for pair in sorted(rig.sent) if not 44 <= pair[0] < 84]
    verify(path)


def test_a_pipeline_without_any_postgres_is_noticed_too_and_one_that_was_killed_is_not(rig: Rig, start: Start) -> None:
    path = rig.directory / "files.toml"
    path.write_text(SQLITE.format(topic=rig.topic, servers=rig.servers, directory=rig.directory))

    def ids() -> list[int]:
        if not (rig.directory / "rows.db").exists():
            return []
        with closing(sqlite3.connect(rig.directory / "rows.db", timeout=10)) as connection:
            try:
                return [number for (number,) in connection.execute("SELECT id FROM rows ORDER BY id")]
            except sqlite3.OperationalError:
                return []  # the table is not there yet

    rig.put(40)
    first = start(path)
    first.until(lambda: len(ids()) == 40 and first.epochs() > 0, "40 rows")
    moved = ("positions", path, "--set", "latest", "--yes")
    for words in (moved, ("reset", path, "--yes"), ("savepoint", "create", path)):
        assert f"process {first.driver} of this machine runs it" in refused(*words)
    rig.put(40)
    with closing(CheckpointStore(f"sqlite:///{rig.directory}/rows.db")) as store:
        first.until(lambda: len(ids()) == 80 and not store.facts("files").unfinished, "80 rows")
    first.kill()
    rig.put(40)
    code, said = onefold(*moved)
    assert code == 0, said

    second = start(path)
    rig.put(40)
    second.until(lambda: len(ids()) == 120, "40 rows more")
    second.stop()
    assert ids() == [*range(80), *range(120, 160)]
    code, said = onefold(*moved)
    assert "[move-to-itself]" in said, "it has said that it ended"
