"""`python -m bench.soak`: one daemon at full speed for half an hour, its memory measured each minute.

Four pipelines read one topic that always has a backlog: on the engine rows and a sum by key, on Spark a flow and a
query of Spark's own. What is written is counted and cleared as it goes (number and sum of the ids), so that neither
Kafka nor Postgres fills the disk. Exit code 1: a row was lost or doubled, the daemon did not end with 0, or memory
grew. See docs/tuning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, TopicPartition

from onefold.core import OnefoldError
from onefold.local import KafkaServer, PostgresServer
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["Memory", "grown_mb", "memory_of"]

PARTITIONS = 4
_MB = 1 << 20
_AHEAD_MAX = 3_000_000  # records that no pipeline has read yet
_SLICE = 20_000
_GROWN_MB_MAX = 30.0  # in the time after the warm-up
_STOP_S = 120

_FILE = """\
name = "{name}"
runtime = "{runtime}"
[[sources]]
kind = "kafka"
topics = "soak"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
max_offsets_per_trigger = 200000
{transform}
[[sinks]]
kind = "postgres"
url = "{url}"
table = "{name}"
{spark}
"""
_SPARK = '[spark]\nmaster = "local[2]"\nsettings = { "spark.driver.memory" = "1g" }'
_TOTALS = """\
from onefold.flow import Flow, count, sum_
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource


def flow(settings):
    made = Flow("totals")
    source = KafkaSource(
        "soak",
        bootstrap_servers=settings["servers"],
        format="json",
        schema="id long, n long",
        max_offsets_per_trigger=200_000,
    )
    totals = made.source(source, uid="soak").key_by("n").aggregate(uid="totals", records=count(), ids=sum_("id"))
    totals.sink(PostgresSink(settings["url"], "totals", mode="upsert", key="n", order="onefold_epoch"))
    return made
"""
_TOTALS_FILE = """\
flow = "totals.py:flow"
runtime = "engine"
[settings]
servers = "{servers}"
url = "{url}"
"""
_SQL = '[[steps]]\nsql = "SELECT id, n FROM source"\nschema = "id long, n long"'


@dataclass(frozen=True)
class Memory:
    """Memory that a daemon's processes filled, in MB, and how many these are. A page that several share counts in
    parts, and the pages of files (Java's and Python's libraries) not at all: how much of them is whose changes with
    every other program."""

    second: float
    mb: Mapping[str, float]
    processes: Mapping[str, int]
    rows: int = 0


def memory_of(pid: int, second: float, rows: int = 0) -> Memory:
    """Of the process `pid` and those below it. Their kinds: `itself`, `hosts` (which it has started), `drivers` (which
    these have forked), `workers` below, `jvm`, and `spark workers` below that."""
    mb, processes = defaultdict[str, float](float), Counter[str]()
    for kind, process in _kinds(psutil.Process(pid)):
        with suppress(ProcessLookupError, FileNotFoundError):
            mb[kind] += _filled_mb(process.pid)
            processes[kind] += 1
    return Memory(second, {kind: round(of, 1) for kind, of in mb.items()}, dict(processes), rows)


def _kinds(process: psutil.Process, depth: int = 0, below: str | None = None) -> Iterator[tuple[str, psutil.Process]]:
    with suppress(psutil.NoSuchProcess):
        is_jvm = process.name() == "java"
        kind = "jvm" if is_jvm else below or ("itself", "hosts", "drivers", "workers")[min(depth, 3)]
        yield kind, process
        for child in process.children():
            yield from _kinds(child, depth + 1, "spark workers" if is_jvm else below)


def _filled_mb(pid: int) -> float:
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    kb = {row[0]: int(row[1]) for row in rows if row[0].startswith("Pss_")}
    return (kb["Pss_Anon:"] + kb["Pss_Shmem:"]) * 1024 / _MB


def grown_mb(samples: Sequence[Memory], kind: str) -> float:
    """How far the median of the last third of the samples is above that of the first, of a kind of processes: workers
    that are replaced, and what they have fetched ahead, go up and down by more than a leak."""
    values = [one.mb.get(kind, 0.0) for one in samples]
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) - statistics.median(values[:third])


@dataclass
class _Table:
    """The rows of one pipeline: counted, and cleared. Totals, which are replaced, are kept."""

    url: str
    name: str
    rows: int = 0
    total: int = 0

    def look(self) -> None:
        if self.name != "totals":
            self.clear()
            return
        with psycopg.connect(self.url) as connection:
            found = connection.execute("SELECT coalesce(sum(records), 0), coalesce(sum(ids), 0) FROM totals").fetchone()
        assert found is not None
        self.rows, self.total = int(found[0]), int(found[1])

    def clear(self) -> None:
        """Between two epochs: nobody waits for the lock, which a prepared transaction would hold back for ever."""
        while True:
            with suppress(psycopg.errors.LockNotAvailable), psycopg.connect(self.url) as connection:
                connection.execute(f"LOCK TABLE {self.name} IN ACCESS EXCLUSIVE MODE NOWAIT".encode())
                found = connection.execute(
                    f"SELECT count(*), coalesce(sum(id), 0) FROM {self.name}".encode()
                ).fetchone()
                assert found is not None
                connection.execute(f"TRUNCATE {self.name}".encode())
                connection.commit()
                self.rows, self.total = self.rows + found[0], self.total + int(found[1])
                return
            time.sleep(0.005)


@dataclass
class _Filling:
    """Writes records with the ids 0, 1, 2, ... and stays `_AHEAD_MAX` ahead of the slower pipeline."""

    servers: str
    read: int = 0
    sent: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        settings = {"bootstrap.servers": self.servers, "enable.idempotence": True, "compression.type": "lz4"}
        producer = Producer({**settings, "linger.ms": 50, "batch.size": 1_000_000, "log_level": 0})
        while not self.over.is_set():
            if self.sent - self.read > _AHEAD_MAX:
                self.over.wait(0.05)
                continue
            partition = self.sent // _SLICE % PARTITIONS
            for number in range(self.sent, self.sent + _SLICE):
                producer.produce("soak", b'{"id":%d,"n":%d}' % (number, number % 1009), partition=partition)
            if producer.flush(60):
                raise RuntimeError("the broker did not acknowledge the records within 60 s")
            self.sent += _SLICE


def _positions(store: CheckpointStore, name: str) -> dict[int, int]:
    """How far a pipeline is complete, by partition."""
    complete = store.facts(name).complete
    return {} if complete is None else complete.range.end.topics().get("soak", {})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=8.0, help="minutes that do not count (default: %(default)s)")
    parser.add_argument("--directory", type=Path, default=Path(".onefold/soak"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ending:
        return _soak(arguments, ending)


def _soak(arguments: argparse.Namespace, ending: ExitStack) -> int:
    folder = arguments.directory.absolute()
    kafka, postgres = KafkaServer(folder), PostgresServer(folder)
    for server in (kafka, postgres):
        ending.callback(server.stop)
        server.start()
    servers, url = kafka.bootstrap_servers, postgres.url
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic("soak", PARTITIONS, 1, config={"segment.bytes": str(64 * _MB), "file.delete.delay.ms": "1000"})
    admin.create_topics([topic])["soak"].result(30)
    told = {
        "plain": _FILE.format(name="plain", runtime="engine", servers=servers, url=url, transform="", spark=""),
        "totals": _TOTALS_FILE.format(servers=servers, url=url),
        "direct": _FILE.format(name="direct", runtime="spark", servers=servers, url=url, transform="", spark=_SPARK),
        "query": _FILE.format(name="query", runtime="spark", servers=servers, url=url, transform=_SQL, spark=_SPARK),
    }
    tables, files = [_Table(url, name) for name in told], [folder / f"{name}.toml" for name in told]
    (folder / "totals.py").write_text(_TOTALS)
    for file, text in zip(files, told.values(), strict=True):
        file.write_text(text)
    filling = _Filling(servers)
    thread = threading.Thread(target=filling.run, daemon=True)
    ending.callback(filling.over.set)
    thread.start()
    log = ending.enter_context((folder / "daemon.log").open("wb"))
    command = [Path(sys.executable).with_name("onefold"), "run", *files]
    daemon = subprocess.Popen(command, stderr=log, start_new_session=True)
    ending.callback(_kill, daemon)
    store = CheckpointStore(PostgresSink(url, "plain").store_url() or "")
    samples: list[Memory] = []
    began_s = time.monotonic()
    while (now_s := time.monotonic() - began_s) < arguments.minutes * 60 and daemon.poll() is None:
        time.sleep(0.5)
        with suppress(OnefoldError):  # before the first start the store has no tables
            ends = [_positions(store, table.name) for table in tables]
            least = {number: min(end.get(number, 0) for end in ends) for number in range(PARTITIONS)}
            filling.read = sum(least.values())
            admin.delete_records([TopicPartition("soak", number, end) for number, end in least.items()])
        if now_s >= 60 * (len(samples) + 1):
            for table in tables:
                with suppress(psycopg.errors.UndefinedTable):  # before its first start
                    table.look()
            samples.append(memory_of(daemon.pid, now_s, sum(table.rows for table in tables)))
            print(json.dumps(asdict(samples[-1])), flush=True)
    filling.over.set()
    thread.join(60)
    # All that was sent is to be written before the daemon is stopped.
    deadline_s = time.monotonic() + 300
    while daemon.poll() is None and time.monotonic() < deadline_s:
        if all(sum(_positions(store, table.name).values()) >= filling.sent for table in tables):
            break
        time.sleep(1)
    stop_s = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    code = daemon.wait(_STOP_S)
    stop_s = time.monotonic() - stop_s
    for table in tables:
        table.look()
    store.close()
    return _report(arguments, samples, tables, filling.sent, code, stop_s)


def _report(
    arguments: argparse.Namespace, samples: list[Memory], tables: list[_Table], sent: int, code: int, stop_s: float
) -> int:
    wrong = [] if code == 0 else [f"the daemon ended with {code}"]
    for table in tables:
        if (table.rows, table.total) != (sent, sent * (sent - 1) // 2):
            wrong.append(f"{table.name}: {table.rows:,} rows, {sent:,} were sent")
    warm = [one for one in samples if one.second >= arguments.warm_up * 60]
    grown = {}
    if len(warm) < 2:
        wrong.append("too short to tell whether memory grows")
        warm = []
    for kind in warm[-1].mb if warm else ():
        grown[kind] = round(grown_mb(warm, kind), 1)
        if grown[kind] > _GROWN_MB_MAX:
            wrong.append(f"{kind}: {grown[kind]} MB more")
    found = {"rows": sum(table.rows for table in tables), "exit_code": code, "stop_s": round(stop_s, 1)}
    print(json.dumps({**found, "grown_mb": grown, "wrong": wrong}), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**found, "grown_mb": grown, "samples": [asdict(one) for one in samples]}))
    return bool(wrong)


def _kill(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is None:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait(30)


if __name__ == "__main__":
    sys.exit(main())
