"""README's scripts as they stand, killed and started again, beside servers of a user: the first pipeline and the flow.
And the script of docs/aggregation.md on the same orders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.support import wait_until

from onefold.local import KafkaServer, PostgresServer

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.only_with_servers("local", reason="the page starts local servers"),
]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
# Of README's flow and of the script of docs/aggregation.md: the table, and what of the orders it has to be.
TOTALS = (
    "SELECT account, orders, amount FROM totals",
    "SELECT account, count(*), sum(amount) FROM orders GROUP BY 1",
)
PER_MINUTE = (
    "SELECT minute, account, orders, amount FROM per_minute",
    "SELECT date_trunc('minute', at), account, count(*), sum(amount) FROM orders GROUP BY 1, 2",
)


@contextmanager
def running(script: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The script in a session of its own, which is killed at the end: its JVM too."""
    with (folder / f"{script}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / script)], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait(30)


MINUTES = "SELECT account, window_start, orders, amount, 1 FROM minutes"
OF_MINUTES = """
    SELECT o.account, m.window_start, count(*), sum(o.amount), m.rows FROM orders o JOIN
        (SELECT account, window_start, window_end, count(*) AS rows FROM minutes GROUP BY 1, 2, 3) m
        ON o.account = m.account AND o.at >= m.window_start AND o.at < m.window_end
    GROUP BY 1, 2, m.rows"""


def orders(servers: str) -> int:
    """How many records the topic has."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "count"})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition("orders", number))[1] for number in range(3))
    finally:
        consumer.close()


def rows(connection: psycopg.Connection[tuple[int, int]]) -> tuple[int, int]:
    """How many rows the table has, and how many different orders."""
    try:
        return connection.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone() or (0, 0)
    except psycopg.errors.UndefinedTable:
        return 0, 0


def totalled(connection: psycopg.Connection[tuple[int, int]]) -> int:
    """How many orders totals.py has counted."""
    try:
        return int((connection.execute("SELECT sum(orders) FROM totals").fetchone() or (0,))[0] or 0)
    except psycopg.errors.UndefinedTable:
        return 0


def are_same(connection: psycopg.Connection[tuple[int, int]], kept: str, wanted: str) -> bool:
    """Whether a pipeline's table has what the query over the orders says. There may be no table yet."""
    query = f"(({kept}) EXCEPT ({wanted})) UNION ALL (({wanted}) EXCEPT ({kept}))"
    try:
        return not connection.execute(query.encode()).fetchall()
    except psycopg.errors.UndefinedTable:
        return False


def test_the_first_scripts_run_as_they_stand_and_a_killed_pipeline_has_each_order_once(tmp_path: Path) -> None:
    home = tmp_path / ".onefold" / "local"
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(home))
        postgres = stack.enter_context(PostgresServer(home))
        connection = stack.enter_context(psycopg.connect(postgres.url, autocommit=True))

        def run_until(count: int, *, interrupts: bool = False) -> None:
            log = tmp_path / "first.py.log"
            with running("first.py", tmp_path) as pipeline:
                wait_until(lambda: rows(connection)[0] >= count or pipeline.poll() is not None, "first.py")
                assert pipeline.poll() is None, log.read_text()
                time.sleep(3)  # into some later epoch; or until the last one is complete
                assert "[Stage" not in log.read_text() and "log level" not in log.read_text()  # Spark is quiet
                if interrupts:  # by Ctrl-C, as the page ends it: a terminal sends it to all processes of the group
                    before = len(log.read_text())
                    os.killpg(pipeline.pid, signal.SIGINT)
                    assert pipeline.wait(60) == 0, log.read_text()
                    said = log.read_text()[before:]
                    assert "SIGINT" in said and said.count("\n") < 4, said

        def totalled_until(count: int) -> None:
            with running("totals.py", tmp_path) as flow:
                wait_until(lambda: totalled(connection) >= count or flow.poll() is not None, "totals.py")
                assert flow.poll() is None, (tmp_path / "totals.py.log").read_text()

        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        with running("orders.py", tmp_path) as producer:
            wait_until(lambda: "orders" in admin.list_topics(timeout=30).topics, "the topic")
            for _ in range(2):
                run_until(rows(connection)[0] + 1)
            for _ in range(2):
                totalled_until(totalled(connection) + 1)
            assert producer.poll() is None, (tmp_path / "orders.py.log").read_text()
            producer.send_signal(signal.SIGINT)
            assert producer.wait(60) == 0 and not (tmp_path / "orders.py.log").read_text()
        sent = orders(kafka.bootstrap_servers)
        least = sent - sent // 5000 - 1  # one order in 5,000 has no amount, and is filtered
        run_until(least, interrupts=True)
        count, different = rows(connection)
        assert count == different and least <= count <= sent
        onefold, pipeline = Path(sys.executable).with_name("onefold"), f"{EXAMPLES / 'first.py'}:orders"
        for command in (["verify", pipeline, "--key=id"], ["doctor", pipeline]):
            found = subprocess.run(
                [onefold, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
            )
            assert found.returncode == 0, found.stdout + found.stderr
        with running("totals.py", tmp_path) as flow:
            wait_until(lambda: are_same(connection, *TOTALS) or flow.poll() is not None, "totals.py")
            assert flow.poll() is None, (tmp_path / "totals.py.log").read_text()
        assert are_same(connection, MINUTES, OF_MINUTES), "of those that are over"
        with running("counts.py", tmp_path) as counting:
            wait_until(lambda: are_same(connection, *PER_MINUTE) or counting.poll() is not None, "counts.py")
            assert counting.poll() is None, (tmp_path / "counts.py.log").read_text()


def test_before_the_servers_are_up_the_script_and_the_commands_end_with_one_line(tmp_path: Path) -> None:
    script = EXAMPLES / "first.py"
    onefold = Path(sys.executable).with_name("onefold")
    scripts = ([sys.executable, EXAMPLES / name] for name in ("orders.py", "first.py", "totals.py"))
    for command in (*scripts, [onefold, "validate", f"{script}:orders"]):
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert ended.stderr.startswith("LocalServerError: ") and ended.stderr.count("\n") == 1, ended.stderr
