"""A flow of ids, with state of two kinds, for tests of savepoints: here, and for commands in other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from harness.ending import run_until
from harness.support import wait_until

from onefold.flow import Flow, StatefulProcessor, Stream, count, max_, sum_
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import PostgresSink
from onefold.sources import FileSource

__all__ = ["Ids", "Last", "as_they_come", "job_file", "killed_at", "onefold", "program", "summed"]

ONEFOLD = Path(sys.executable).with_name("onefold")
WAIT_S = 120


class Last(StatefulProcessor):
    """Of each key, all that came, and the highest id of each parity."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getListState("seen", "id long, note string")
        self.highest = handle.getMapState("highest", "parity int", "id long, tag binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002
        for row in rows:
            self.seen.appendValue((row.id, f"n{row.id}"))
            before = self.highest.getValue((row.id % 2,))
            if before is None or before[0] < row.id:
                self.highest.updateValue((row.id % 2,), (row.id, bytes([row.id % 256])))
            best = sum(value[0] for _, value in self.highest.iterator())
            yield (*key, row.id, len(list(self.seen.get())), best)


def summed(rows: Stream, uid: str = "n") -> Stream:
    most = {"most": max_("seen"), "best": max_("best")}
    return rows.key_by("k").aggregate(uid=uid, n=count(), total=sum_("id"), **most)


class Ids:
    """Ids in files of a folder, by a flow with state of two kinds, into Postgres."""

    def __init__(self, root: Path, url: str, name: str = "ids") -> None:
        self.root, self.url, self.name = root, url, name
        (root / "in").mkdir(exist_ok=True)
        self.sent: list[int] = []
        self.build: Callable[[Stream], Stream] = summed
        self.pipeline = self.made()

    def made(self, max_parallelism: int = 128, on: Spark | None = None, **engine: Any) -> Pipeline:
        flow = Flow(self.name, max_parallelism=max_parallelism)
        rows = flow.source(self.source(), uid="in")
        of = rows.key_by("k").process(Last(), uid="last", schema="k long, id long, seen long, best long")
        return self.into(flow, self.build(of), on or Engine(**engine))

    def source(self) -> FileSource:
        return FileSource(str(self.root / "in"), format="json", schema="k long, id long", settle_s=0.0)

    def into(self, flow: Flow, rows: Stream, on: Engine | Spark) -> Pipeline:
        rows.sink(PostgresSink(self.url, self.name, mode="upsert", key="k", order="onefold_epoch"))
        place = self.root / f"{self.name}-{'spark' if isinstance(on, Spark) else 'checkpoint'}"
        return Pipeline(flow, checkpoint=str(place), runtime=on)

    def put(self, ids: range) -> None:
        lines = [json.dumps({"k": id % 7, "id": id}) + "\n" for id in ids]
        (self.root / "in" / f"{ids.start}.json").write_text("".join(lines))
        self.sent += ids

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as db, suppress(psycopg.errors.UndefinedTable):
            return db.execute(f"SELECT {columns} FROM {self.name} ORDER BY k").fetchall()  # type: ignore[arg-type]
        return []

    def is_exact(self) -> bool:
        of = {k: [id for id in self.sent if id % 7 == k] for k in range(7)}
        best = {k: sum({id % 2: id for id in ids}.values()) for k, ids in of.items()}
        sums = [(k, len(ids), sum(ids), len(ids), best[k]) for k, ids in of.items() if ids]
        return [row[:5] for row in self.rows()] == sums

    def run(self, pipeline: Pipeline | None = None) -> None:
        run_until(pipeline or self.pipeline, self.is_exact)
        assert self.is_exact(), self.rows()

    def run_apart(self, file: str) -> None:
        """In a process of its own: one that has used RocksDB forks no workers that use it."""
        with program(file) as process:
            wait_until(self.is_exact, "the rows are exact")
            process.terminate()
            assert process.wait(WAIT_S) == 0

    def file(self, **settings: Any) -> str:
        """What a command in a process of its own takes for `made(**settings)`."""
        return job_file(self.root, f"Ids(Path({str(self.root)!r}), {self.url!r}, {self.name!r}).made(**{settings!r})")

    def saved(self, name: str = "s") -> Path:
        return self.root / "savepoints" / self.name / name


def as_they_come(root: Path, url: str, name: str) -> Pipeline:
    """The ids of the same files into a table, without state."""
    flow = Flow(name)
    source = FileSource(str(root / "in"), format="json", schema="id long", settle_s=0.0)
    flow.source(source, uid="in").sink(PostgresSink(url, name))
    return Pipeline(flow, checkpoint=str(root / name), runtime=Engine())


def job_file(root: Path, pipeline: str) -> str:
    """A file with that expression of this module as its pipeline, as commands name it."""
    path = root / f"job_{len(list(root.glob('job_*.py')))}.py"
    path.write_text(
        f"from pathlib import Path\nfrom harness.ids_flow import Ids, as_they_come\npipeline = {pipeline}\n"
    )
    return f"{path}:pipeline"


@contextmanager
def program(file: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs the pipeline of a job file."""
    run = "import runpy, sys; runpy.run_path(sys.argv[1])['pipeline'].run()"
    with _process(sys.executable, "-c", run, file.rpartition(":")[0]) as process:
        yield process


@contextmanager
def onefold(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process of its own."""
    with _process(str(ONEFOLD), *arguments, **environment) as process:
        yield process


@contextmanager
def _process(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """One that is there at the block's end is killed."""
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, env=os.environ | paths | environment, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_at(root: Path, place: str, *arguments: str) -> None:
    """Run the command, and kill -9 it when it comes there."""
    held = root / "held"
    held.mkdir()
    with onefold(*arguments, ONEFOLD_FAILPOINT=place, ONEFOLD_FAILPOINT_DIR=str(held)) as process:
        wait_until(lambda: any(held.iterdir()) or process.poll() is not None, f"coming to {place}")
        assert process.poll() is None, f"it has ended without coming to {place}"
