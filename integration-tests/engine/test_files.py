"""Flows that read files, killed wherever an epoch may be, and paths that change. SQLite is all they need."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError, DataLoss
from onefold.core.waiting import Wait
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import FileSource

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from pathlib import Path
from test_files import flow_of
folder = Path(sys.argv[1])
flow_of(folder).run(checkpoint=str(folder / "cp"))
"""


def flow_of(folder: Path, path: str = "in") -> Flow:
    flow = Flow("files")
    source = FileSource(str(folder / path), format="json", schema="id long", name="in", max_files_per_trigger=2)
    flow.source(source.bounded(), uid="in").sink(SqlSink(f"sqlite:///{folder}/t.db", "t"))
    return flow


def run_on(folder: Path, path: str = "in") -> None:
    """An unbounded run, up to where nothing is left to read."""
    flow = Flow("files")
    source = FileSource(str(folder / path), format="json", schema="id long", name="in")
    flow.source(source, uid="in").sink(SqlSink(f"sqlite:///{folder}/t.db", "t"))
    flow.run(checkpoint=str(folder / "cp"), on_outcome=lambda _: os.kill(os.getpid(), signal.SIGTERM))


def put(folder: Path, name: str, number: int) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"id":{number}}}\n')
    return path


def ids(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "t.db")) as db:
        return [row[0] for row in db.execute("SELECT id FROM t ORDER BY 1")]


@pytest.mark.parametrize("place", ["before:ReadClock", "after:ReadClock", "before:Decide", "after:Decide"])
def test_a_flow_that_is_killed_at_any_step_reads_each_file_once(tmp_path: Path, place: str) -> None:
    for number in range(7):
        put(tmp_path, f"in/{number}.json", number)
    held = tmp_path / "held"
    held.mkdir()
    for turn in (1, 2):
        environment = os.environ | {"ONEFOLD_FAILPOINT": f"{place}#{turn}", "ONEFOLD_FAILPOINT_DIR": str(held)}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parent)
        wait = Wait(60, 0.02, 0.1)
        while not [*held.iterdir()] and process.poll() is None and wait.left_s > 0:
            wait.pause()
        process.kill()
        process.wait()
        for marker in held.iterdir():
            marker.unlink()
        if turn == 1 and place == "after:Decide":
            (tmp_path / "in/done").mkdir(exist_ok=True)
            (tmp_path / "in/0.json").rename(tmp_path / "in/done/0.json")  # which an epoch has read that is decided
    flow_of(tmp_path).run(checkpoint=str(tmp_path / "cp"))
    assert ids(tmp_path) == [*range(7)]


def test_a_path_that_is_narrowed_under_its_name_reads_nothing_again(tmp_path: Path) -> None:
    put(tmp_path, "in/a/1.json", 1), put(tmp_path, "in/b/2.json", 2)
    run_on(tmp_path)
    put(tmp_path, "in/a/3.json", 3), put(tmp_path, "in/b/4.json", 4)
    run_on(tmp_path, "in/a")
    assert ids(tmp_path) == [1, 2, 3]
    run_on(tmp_path)
    assert ids(tmp_path) == [1, 2, 3, 4]


def test_a_log_that_somebody_has_deleted_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "in/1.json", 1)
    run_on(tmp_path)
    put(tmp_path, "in/2.json", 2)
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        db.execute("DELETE FROM onefold_journals")
        db.commit()
    with raises(DataLoss, "file-log-missing"):
        run_on(tmp_path)
    assert ids(tmp_path) == [1]


@pytest.mark.parametrize("checkpoint", ["in", "in/cp", "in/a/b/cp"])
def test_a_checkpoint_where_files_are_read_is_refused_before_it_is_made(tmp_path: Path, checkpoint: str) -> None:
    put(tmp_path, "in/1.json", 1)
    with raises(ConfigError, "checkpoint-in-source"):
        flow_of(tmp_path).run(checkpoint=str(tmp_path / checkpoint))
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["1.json"]


def test_a_sink_whose_file_lies_where_files_are_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "in/1.json", 1)
    with pytest.raises(ConfigError, match=r"t\.db.*checkpoint-in-source"):
        flow_of(tmp_path, ".").run(checkpoint=str(tmp_path.parent / "cp"))
