"""Runs of this process with `listen=`, of a folder's files, and what another thread does meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness.daemon_stubs import Asking

from onefold.core.waiting import Wait
from onefold.flow import Flow
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import SqlSink
from onefold.sources import FileSource

__all__ = ["Folder", "Meanwhile", "free", "is_free"]


class Folder:
    """A folder of files of numbers, and flows that copy them into a table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = 0
        (root / "in").mkdir()
        with sqlite3.connect(root / "out.db") as database:
            database.execute("CREATE TABLE numbers (id INTEGER)")

    def add(self, rows: int = 10) -> None:
        begin, self._files = rows * self._files, self._files + 1
        part = self.root / "part"
        part.write_text("".join(f'{{"id": {begin + at}}}\n' for at in range(rows)))
        part.rename(self.root / "in" / f"{self._files}.json")

    def flow(self, ends: bool = False, function: Callable[[Any], Any] | None = None) -> Flow:
        flow = Flow("numbers")
        source = FileSource(f"{self.root}/in", format="json", schema="id long", settle_s=0)
        stream = flow.source(source.bounded() if ends else source, uid="in")
        if function is not None:
            stream = stream.map_batches(function, pa.schema([("id", pa.int64())]))
        stream.filter("id >= 0").sink(SqlSink(f"sqlite:///{self.root}/out.db", "numbers"))
        return flow

    def run(self, flow: Flow, listen: str, **settings: Any) -> Any:
        return flow.run(checkpoint=f"{self.root}/checkpoint", listen=listen, **settings)

    def pipeline(self, flow: Flow, runtime: Engine | Spark) -> Pipeline:
        return Pipeline(flow, runtime=runtime, checkpoint=f"{self.root}/checkpoint", directory=str(self.root))

    def written(self) -> int:
        with sqlite3.connect(self.root / "out.db") as database:
            rows, different = database.execute("SELECT count(*), count(DISTINCT id) FROM numbers").fetchone()
        assert rows == different
        return int(rows)


def free() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def is_free(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as trying:
        return trying.connect_ex((host, int(port))) != 0


class Meanwhile:
    """What another thread does while this one runs a flow. Where that fails, the flow is stopped."""

    def __init__(self, address: str, name: str = "numbers", within_s: float = 60) -> None:
        self.ask = Asking(f"http://{address}")
        self._path, self._within_s = f"/pipelines/{name}", within_s
        self._pool = ThreadPoolExecutor(1)

    def __call__(self, do: Callable[[], None], run: Callable[[], Any], once: str = "running") -> Any:
        def done() -> None:
            try:
                self.until("state", once)
                do()
            except BaseException:
                os.kill(os.getpid(), signal.SIGTERM)
                raise

        doing = self._pool.submit(done)
        try:
            return run()
        finally:
            doing.result(2 * self._within_s)

    def until(self, name: str, value: object) -> None:
        wait = Wait(self._within_s)
        while (found := self.now().get(name)) != value:
            assert wait.again(), found

    def now(self) -> dict[str, Any]:
        try:
            return dict(self.ask.get(self._path))
        except OSError:  # nobody answers yet
            return {}

    def stop(self) -> None:
        assert self.ask.post(f"{self._path}/stop").status == 202
