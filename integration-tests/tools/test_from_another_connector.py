"""docs/from-another-connector.md: its commands are typed, beside an old job that is killed and producers that go on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from harness.ending import run_until
from harness.support import wait_until
from harness.transcripts import Shell, check, steps
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.pipeline import read
from onefold.sources.kafka import Broker

pytestmark = [pytest.mark.servers, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/from-another-connector.md"
JOB = ROOT / "integration-tests/harness/old_job.py"
KEYS = 300
WITHIN_S = 120.0
REWRITTEN = """
name = "rewritten"
runtime = "engine"
[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, account int, amount decimal(12,2), __deleted string"
columns = "position"
[[steps]]
with_columns = {{ version = "kafka_offset", deleted = "__deleted = 'true'" }}
[[steps]]
select = ["id", "account", "amount", "version", "deleted"]
[[sinks]]
kind = "postgres"
url = "{url}"
table = "orders"
mode = "upsert"
key = "id"
order = "version"
delete_when_true = "deleted"
"""


class Changes:
    """Debezium's changes of some orders, in one partition a key, and the rows that are to be there after the last."""

    def __init__(self, servers: str, topic: str, *, form: str = "debezium") -> None:
        self.rows: dict[int, tuple[int, Decimal]] = {}
        self.sent = 0
        self._producer, self._topic = Producer({"bootstrap.servers": servers}), topic
        self._form, self._random = form, random.Random(7)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def send(self, count: int) -> None:
        for _ in range(count):
            self._change(self._random.randrange(KEYS))
        assert self._producer.flush(60) == 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _go_on(self) -> None:
        while not self._stopped.wait(0.2):
            self.send(20)

    def _change(self, key: int) -> None:
        after = None
        if key in self.rows and self._random.random() < 0.2:
            before: dict[str, Any] | None = {"id": key}
            del self.rows[key]
        else:
            before, self.rows[key] = None, (self.sent % 7, Decimal(self.sent) / 100)
            after = {"id": key, "account": self.sent % 7, "amount": f"{self.sent / 100:.2f}"}
        source = {"connector": "postgresql", "lsn": 1000 + self.sent, "ts_ms": 1764400000000, "snapshot": "false"}
        op = "d" if after is None else "u"
        envelope = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1764400000001}
        if self._form == "debezium":
            self._put(key, envelope)
        if self._form == "rewritten":
            row = after or {"id": key, "account": None, "amount": None}
            self._put(key, {**row, "__deleted": "true" if after is None else "false"})
        elif after is None:
            self._put(key, None)
        elif self._form == "unwrapped":
            self._put(key, after)

    def _put(self, key: int, value: Any) -> None:
        text = None if value is None else json.dumps(value).encode()
        self._producer.produce(self._topic, text, json.dumps({"id": key}).encode(), partition=key % 3)
        self.sent += 1


class OldJob:
    """It runs from `start` to `stop`, or until it has killed itself."""

    def __init__(self, servers: str, topic: str, url: str) -> None:
        self._given = [servers, topic, f"connect-{topic}", url]
        self._broker = Broker(servers, {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, killed_after: int = 0) -> None:
        self._process = subprocess.Popen([sys.executable, str(JOB), *self._given, str(killed_after)])

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0

    def wait_killed(self) -> None:
        """Until its group has no members any more, too."""
        assert self._process is not None
        assert self._process.wait(WITHIN_S) == -signal.SIGKILL
        wait_until(lambda: not self._asked()[0], "leaving the group")

    def wait_committed(self, count: int) -> None:
        wait_until(lambda: self.committed() >= count, f"committing {count}")

    def committed(self) -> int:
        return sum(self._asked()[1].values())

    def _asked(self) -> tuple[bool, dict[tuple[str, int], int]]:
        return self._broker.group(self._given[2], [(self._given[1], number) for number in range(3)])

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


@pytest.fixture
def topic(kafka_topic: Callable[..., str]) -> str:
    return kafka_topic(partitions=3)


@pytest.fixture
def changes(kafka: Any, topic: str) -> Iterator[Changes]:
    made = Changes(kafka.bootstrap_servers, topic)
    yield made
    made.stop()


@pytest.fixture
def job(kafka: Any, topic: str, postgres_url: str) -> Iterator[OldJob]:
    with closing(OldJob(kafka.bootstrap_servers, topic, postgres_url)) as made:
        yield made


@pytest.fixture
def shell(kafka: Any, postgres_url: str, tmp_path: Path) -> Iterator[Shell]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    given = {"KAFKA": kafka.bootstrap_servers, "POSTGRES": postgres_url}
    shutil.copy(ROOT / "docs/examples/debezium.py", tmp_path)
    with closing(Shell(tmp_path, {**os.environ, **given, "ONEFOLD_LISTEN": address})) as opened:
        yield opened


def page(topic: str) -> str:
    text = PAGE.read_text().replace("connect-orders", f"connect-{topic}")
    return text.replace('topics = "orders"', f'topics = "{topic}"')


def rows(url: str) -> dict[int, tuple[int, Decimal]]:
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('orders')").fetchone() == (None,):
            return {}
        found = connection.execute("SELECT id, account, amount FROM orders").fetchall()
    assert len({key for key, _, _ in found}) == len(found)
    return {key: (account, amount) for key, account, amount in found}


@pytest.mark.skipif(shutil.which("psql") is None, reason="the page alters the table with psql")
def test_a_table_is_taken_over_from_a_job_that_was_killed_and_given_back(
    topic: str, changes: Changes, job: OldJob, shell: Shell, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, account integer, amount numeric(12,2))")
        connection.execute("CREATE TABLE sales (id bigint, day date)")
        connection.execute("CREATE TABLE sales_copy (id bigint, day date)")
        connection.execute("INSERT INTO sales SELECT n, date '2026-11-20' + n % 3 FROM generate_series(0, 299) n")
    changes.send(2000)
    changes.start()
    job.start()
    job.wait_committed(2000)
    job.stop()
    for step in steps(page(topic)):
        if step.command.startswith("psql"):
            job.start(killed_after=3)
            job.wait_killed()
        elif step.command.startswith("kill"):
            job.wait_committed(changes.sent)
        elif step.command.startswith("onefold reset"):
            changes.stop()
            job.start()
            job.wait_committed(changes.sent)
            job.stop()
            assert rows(postgres_url) == changes.rows
        check(step, shell.run(step.command, 300))
    assert len(changes.rows) > KEYS / 2
    with psycopg.connect(postgres_url) as connection:
        copied = connection.execute("SELECT id FROM sales_copy ORDER BY id").fetchall()
    assert copied == [(number,) for number in range(0, 300, 3)]


def test_changes_that_debezium_has_unwrapped_delete_by_their_tombstones(
    kafka: Any, topic: str, shell: Shell, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = Changes(kafka.bootstrap_servers, topic, form="unwrapped")
    changes.send(2000)
    (file,) = (step for step in steps(page(topic)) if step.command.startswith("cat > orders.toml"))
    shell.run(file.command.replace(":changes", ":unwrapped"))
    monkeypatch.setenv("KAFKA", kafka.bootstrap_servers)
    monkeypatch.setenv("POSTGRES", postgres_url)
    run_until(read(str(shell.folder / "orders.toml")), lambda: rows(postgres_url) == changes.rows)


def test_deletions_that_debezium_has_rewritten_are_seen_by_steps_and_by_an_expectation(
    kafka: Any, topic: str, postgres_url: str, tmp_path: Path
) -> None:
    changes, file = Changes(kafka.bootstrap_servers, topic, form="rewritten"), tmp_path / "rewritten.toml"
    changes.send(2000)
    file.write_text(REWRITTEN.format(topic=topic, servers=kafka.bootstrap_servers, url=postgres_url))
    run_until(read(str(file)), lambda: rows(postgres_url) == changes.rows)
    query = PAGE.read_text().partition("<!-- rewritten.sql -->\n```sql\n")[2].partition("```")[0]
    given = ["verify", str(file), "--without-ledger", f"--expect={query}", "--json"]

    def found() -> dict[str, int]:
        answer = CliRunner().invoke(app, given, catch_exceptions=False)
        counts = json.loads(answer.stdout)["sinks"]["orders"]["comparison"]
        return {kind: counts[kind] for kind in ("lost", "changed", "unexpected") if counts[kind]}

    assert found() == {}
    gone, there = min({*range(KEYS)} - changes.rows.keys()), min(changes.rows)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO orders (id) VALUES (%s)", (gone,))
        connection.execute("DELETE FROM orders WHERE id = %s", (there,))
    assert found() == {"lost": 1, "unexpected": 1}
