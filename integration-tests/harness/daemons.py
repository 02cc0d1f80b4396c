"""`onefold run` in a process of its own, on a pipeline of the test's topic and table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from harness.support import Rig, wait_until

from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

ONEFOLD = Path(sys.executable).with_name("onefold")
FILE = """\
name = "{name}"
stop_within_s = 60
{top}
[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
max_offsets_per_trigger = {at_most}
{tables}
[[sinks]]
kind = "postgres"
url = "{url}"
table = "{table}"

[spark]
master = "local[2]"
{spark}
"""
ORDERS_FILE = """\
name = "orders"
runtime = "{runtime}"

[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
on_error = "dead_letter"
{source}
[sources.dead_letters]
kind = "postgres"
url = "{url}"
table = "dead"
delivery = "two_phase"

[[sinks]]
kind = "postgres"
url = "{url}"
table = "rows"
delivery = "two_phase"

[spark]
master = "local[2]"

{tables}"""
TOTALS_FLOW = """\
from onefold.flow import Flow
from onefold.flow import count, sum_
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource


def flow(settings):
    made = Flow("totals")
    source = KafkaSource(
        settings["topic"], bootstrap_servers=settings["servers"], format="json", schema="id long, n long",
        max_offsets_per_trigger=settings["at_most"],
    )
    totals = made.source(source, uid="orders").key_by("n").aggregate(uid="totals", orders=count(), ids=sum_("id"))
    totals.sink(PostgresSink(settings["url"], "totals", mode="upsert", key="n", order="onefold_epoch"))
    return made
"""
TOTALS_FILE = """\
flow = "jobs/totals.py:flow"
runtime = "{runtime}"
[settings]
topic = "{topic}"
servers = "{servers}"
url = "${{DATABASE}}"
at_most = 200
[spark]
master = "local[2]"
"""
_ANSWERS = re.compile(r"the API answers at (https?://[\w.:\[\]]+)")
SQL = '[[steps]]\nsql = "SELECT id, n FROM source"\nschema = "id long, n long"\n'
NOW = "available_now = true"


class Daemon:
    """`onefold run` in a process of its own, with all that it logs. Its API answers at `url`, a port of its own."""

    def __init__(self, files: Sequence[Path], *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [ONEFOLD, "run", *options, *files],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={"ONEFOLD_LISTEN": "127.0.0.1:0", **os.environ, **environment},
        )
        self.lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.lines.extend(lines)

    def events(self) -> list[dict[str, object]]:
        """What it logged as JSON."""
        return [json.loads(line) for line in list(self.lines) if line.startswith(b"{")]

    @property
    def url(self) -> str:
        """Where its API answers, once it does."""
        wait_until(lambda: _ANSWERS.search(self.text()) is not None or self.process.poll() is not None, "an API")
        found = _ANSWERS.search(self.text())
        assert found is not None, self.text()
        return found[1]

    def wait(self, within_s: float = 120) -> int:
        code = self.process.wait(within_s)
        self._reader.join(10)
        return code

    def text(self) -> str:
        return b"".join(self.lines).decode()

    def stop(self) -> None:
        """SIGTERM, and an end with 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.text()

    def until(self, condition: Callable[[], bool], doing: str, within_s: float = 240) -> None:
        """Wait while it runs; what it has logged is the failure's text."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline_s, f"{doing} took more than {within_s:.0f} s:\n{self.text()}"
            time.sleep(0.05)

    def epochs(self) -> int:
        """How many it has completed."""
        return sum(event["logger"] == "onefold.epochs" for event in self.events())

    def says(self, code: str) -> bool:
        """Whether it has logged the error of that code."""
        return f"[{code}]" in self.text()

    def kill(self) -> None:
        """All of it at once, as a machine that is switched off."""
        for each in self.members():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(30)
        self._reader.join(10)

    def members(self) -> list[psutil.Process]:
        """Its process, those of its hosts, and what they have started."""
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def hosts(self) -> list[psutil.Process]:
        """The processes that it has started, one for each engine pipeline and one for each Spark."""
        return _children_of(self.process.pid)

    @property
    def host(self) -> int:
        """The process of its only host, once that is there."""
        return _child_of(self.process.pid)

    @property
    def driver(self) -> int:
        """The process that its only host has forked, once that is there."""
        return _child_of(self.host)


def _child_of(pid: int) -> int:
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = _children_of(pid)
        return bool(found)

    wait_until(look, f"a child of process {pid}")
    return found[0].pid


def _children_of(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children()
    return []


Start = Callable[..., Daemon]


@contextmanager
def daemons() -> Iterator[Start]:
    """Starts daemons: `start(file, ..., options=["--text-logs"], TMPDIR="/var/tmp")`. They are killed at the end."""
    made: list[Daemon] = []

    def started(*files: Path, options: Sequence[str] = (), **environment: str) -> Daemon:
        made.append(Daemon(files, *options, **environment))
        return made[-1]

    try:
        yield started
    finally:
        for daemon in made:
            daemon.kill()


def write(
    rig: Rig, tables: str = "", top: str = "", name: str = "orders", topic: str = "", spark: str = "", **more: str | int
) -> Path:
    """A pipeline, as a file. `more`: table, and at_most, the records of an epoch."""
    told = {"table": "rows", "at_most": 500, **more}
    told |= {"name": name, "servers": rig.servers, "topic": topic or rig.topic, "url": rig.url}
    path = rig.directory / f"{name}.toml"
    path.write_text(FILE.format(**told, tables=tables, top=top, spark=spark))
    return path


@contextmanager
def producing(rig: Rig, count: int = 20) -> Iterator[None]:
    """`count` more records every 0.1 s."""
    over = threading.Event()

    def produce() -> None:
        while not over.wait(0.1):
            rig.put(count)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def rows(rig: Rig) -> list[tuple[int, int]]:
    if not rig.sql("SELECT to_regclass('rows') IS NOT NULL AND true")[0][0]:
        return []
    return sorted((int(a), int(b)) for a, b in rig.sql("SELECT id, n FROM rows"))


def wait_for_rows(rig: Rig, daemon: Daemon, count: int) -> None:
    daemon.until(lambda: len(rows(rig)) >= count, f"{count} rows")


def is_whole(rig: Rig, name: str = "orders") -> bool:
    """Whether the pipeline's last epoch is complete, and nothing is prepared or staged any more."""
    store = CheckpointStore(PostgresSink(rig.url, "rows").store_url() or "")
    try:
        facts = store.facts(name)
    finally:
        store.close()
    prepared = rig.sql("SELECT count(*) FROM pg_prepared_xacts")[0][0]
    return not facts.unfinished and facts.complete is not None and prepared == 0


def verify(file: Path) -> None:
    """`onefold verify`, which must find everything exact."""
    command = [ONEFOLD, "verify", file, "--key", "id"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def jvm_of(daemon: Daemon) -> int | None:
    """The process of its Spark, once that is there."""
    for each in daemon.members():
        with suppress(psutil.Error):
            if "java" in each.name():
                return each.pid
    return None
