"""Whole flows whose state must outlive what happens to them: timers after a start, databases' folders, keys' types."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import os, signal, sys, time
from onefold.engine import Restart
from onefold.flow import Evolution, Flow, StatefulProcessor
from onefold.sinks import SqlSink
from onefold.sources import FileSource

folder, state, kind, does = sys.argv[1:]

class Processor(StatefulProcessor):
    def init(self, handle):
        columns = {"keeps more": "more int, n long", "keeps a text": "n string"}.get(does, "n long")
        self.handle, self.n = handle, handle.getValueState("n", columns)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            *more, n = self.n.get() or (0,)
            n += 1
            self.n.update((*more, n))
            if does == "sets a timer":
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1500)
            if does == "fails" and not os.path.exists(f"{folder}/failed{n}"):
                open(f"{folder}/failed{n}", "w").close()
                raise ValueError("once")
            yield n, " ".join(["row", *map(str, more)])

    def handleExpiredTimer(self, key, timerValues, expiredTimer):
        yield 0, "timer"

def ended(outcome):
    if does == "stays":
        print("HERE", flush=True)
    else:
        os.kill(os.getpid(), signal.SIGTERM)

flow = Flow("state", evolution=Evolution(begins={"p.more": 7} if does == "keeps more" else {}))
rows = flow.source(FileSource(f"{folder}/in", format="json", schema=f"k {kind}", max_files_per_trigger=1), uid="in")
made = rows.key_by("k").process(Processor(), schema="n long, what string", uid="p")
made.sink(SqlSink(f"sqlite:///{folder}/t.db", "t"))
restart = Restart(strategy="fixed_delay", delay_s=0.01, attempts=9)
flow.run(checkpoint=f"{folder}/cp", state=state, on_outcome=ended, restart=restart)
"""


class Job:
    """Runs of one flow, each of which ends with its first epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = 0
        for name in ("in", "tmp"):
            (folder / name).mkdir()

    def put(self) -> None:
        (self.folder / f"in/{self.files}.json").write_text('{"k": 1.5}\n')
        self.files += 1

    def start(self, state: str, does: str = "counts", kind: str = "decimal(9,2)") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", JOB, str(self.folder), state, kind, does]
        environment = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, state: str, does: str = "counts", kind: str = "decimal(9,2)") -> str:
        """What it logs."""
        with self.start(state, does, kind) as process:
            return process.communicate(timeout=60)[1]

    def rows(self) -> list[tuple[int, str]]:
        with sqlite3.connect(self.folder / "t.db") as database:
            return database.execute("select n, what from t order by rowid").fetchall()

    def databases(self) -> list[Path]:
        return [*(self.folder / "tmp").iterdir()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.slow
def test_a_timer_fires_after_a_start_that_has_nothing_to_read(job: Job) -> None:
    job.put()
    job.run("memory", "sets a timer")
    assert job.rows() == [(1, "row")]
    job.run("memory", "sets a timer")
    assert job.rows() == [(1, "row"), (0, "timer")]


@pytest.mark.slow
def test_no_folder_of_a_database_is_left(job: Job) -> None:
    for _ in range(2):
        job.put()
        assert "once" in job.run("rocksdb", "fails")
    assert (job.rows(), job.databases()) == ([(1, "row"), (2, "row")], [])
    job.put()
    with job.start("rocksdb", "stays") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "HERE\n"
        assert len(job.databases()) == 1
        process.send_signal(signal.SIGKILL)
    job.put()
    job.run("rocksdb")
    assert (len(job.rows()), job.databases()) == (4, [])


@pytest.mark.slow
@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_a_key_of_another_scale_than_at_the_last_start_is_refused(job: Job, state: str) -> None:
    for kind, refused in (("decimal(9,2)", False), ("decimal(12,2)", False), ("decimal(12,3)", True)):
        job.put()
        assert ("[state-operator-changed]" in job.run(state, kind=kind)) is refused
    assert job.rows() == [(1, "row"), (2, "row")]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_state_follows_code_that_changes(job: Job, state: str) -> None:
    for does in ("counts", "keeps a text", "keeps more", "keeps more", "counts"):
        job.put()
        assert ("[state-operator-changed]" in job.run(state, does)) is (does == "keeps a text")
    assert job.rows() == [(1, "row"), (2, "row 7"), (3, "row 7"), (4, "row")]
