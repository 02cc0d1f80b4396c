"""The walks of docs and the READMEs of connectors/examples: commands are typed, and answer what the page shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition
from harness.renewing import is_renewing
from harness.transcripts import Shell, check, filled, is_filled, shown, steps

from onefold.local import HBaseServer, KafkaServer, PostgresServer
from onefold.sources import HBaseSource

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.xdist_group("transcripts"),
    pytest.mark.only_with_servers("local", reason="the page starts local servers"),
]
ROOT = Path(__file__).parents[2]
EXAMPLES = Path("connectors/examples")
WALK = Path(__file__).with_name("walk.md")
RUN_S = 300.0
TOPICS = ("enriched", "enriched-arrow")


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A folder with the files that the pages take for granted. Servers that are up at the end are stopped."""
    shutil.copytree(ROOT / EXAMPLES, tmp_path / EXAMPLES, ignore=shutil.ignore_patterns(".onefold"))
    shutil.copy(ROOT / "docs/examples/orders.py", tmp_path)
    yield tmp_path
    for folder in (tmp_path, tmp_path / EXAMPLES):
        down = [Path(sys.executable).with_name("onefold"), "local", "down"]
        subprocess.run(down, cwd=folder, stdout=subprocess.DEVNULL, timeout=120, check=True)


@pytest.fixture
def shell(checkout: Path) -> Iterator[Shell]:
    """Commands in it ask the daemon that runs in it: others may run on this machine."""
    environment = {name: value for name, value in os.environ.items() if name not in ("KAFKA", "POSTGRES", "HBASE")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment |= {"ONEFOLD_LISTEN": address, "ONEFOLD_URL": f"http://{address}"}
    with closing(Shell(checkout, environment)) as opened:
        yield opened


def type_page(page: Path, shell: Shell, look: Callable[[], None]) -> None:
    """`look` compares before the last command, which stops the servers."""
    *first, last = steps((ROOT / page).read_text())
    for step in first:
        check(step, shell.run(step.command, RUN_S))
    look()
    assert generations(next(shell.folder.rglob("run.log"))) == {1, 2}, "it was killed in the middle"
    check(last, shell.run(last.command))


def generations(log: Path) -> set[int]:
    """Those that have completed epochs."""
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {event["generation"] for event in events if event["logger"] == "onefold.epochs"}


def sample(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / EXAMPLES / name).read_text().splitlines()]


def selected(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def values(topic: str, servers: str) -> list[bytes]:
    """What read_committed readers see."""
    settings = {"group.id": "look", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest", **settings})
    found, ended = [], 0
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
        while ended < 3:
            record = consumer.poll(30)
            assert record is not None
            if record.error() is not None:
                ended += 1
            else:
                found.append(record.value())
    finally:
        consumer.close()
    return found


def records(topic: str, servers: str) -> list[dict[str, Any]]:
    return [json.loads(value, parse_float=Decimal) for value in values(topic, servers)]


@pytest.mark.docs
@pytest.mark.skipif(shutil.which("psql") is None, reason="the pages look with psql")
@pytest.mark.parametrize("runtime", ["engine", "spark"])
def test_a_new_user_walks_from_an_empty_folder_to_exact_tables(runtime: str, checkout: Path, shell: Shell) -> None:
    other = {"engine": "spark", "spark": "engine"}[runtime]
    template = re.sub(rf"^{other}:.*\n|^{runtime}: ?", "", WALK.read_text(), flags=re.MULTILINE)
    page = ROOT / f"docs/{runtime}-walk.md"
    is_current = is_filled(template, page.read_text())
    assert is_current or is_renewing(), f"{page.name} is stale: run `make docs`, and look at the difference"
    *typed, stop_servers = steps(template)
    answers = []
    for step in typed:
        said = shell.run(step.command, RUN_S).replace(shell.environment["ONEFOLD_LISTEN"], "127.0.0.1:8417")
        if step.is_typed_by_readers:
            answers.append(shown(step.shown, said))

    servers = checkout / ".onefold/local"
    sent = values("orders", KafkaServer(servers).bootstrap_servers)
    sent.remove(b"not an order")
    orders = map(json.loads, sent)
    paid = {order["id"]: Decimal(order["amount"]) for order in orders if Decimal(order["amount"]) > 0}
    url = PostgresServer(servers).url
    assert selected(url, "SELECT id, amount FROM orders ORDER BY id") == sorted(paid.items())
    assert selected(url, "SELECT sum(orders), sum(amount) FROM totals") == [(len(paid), sum(paid.values()))]
    assert selected(url, "SELECT count(*) FROM unreadable") == [(1,)]
    assert len(paid) > 1000
    answers.append(shown(stop_servers.shown, shell.run(stop_servers.command)))
    if not is_current:
        page.write_text(filled(template, answers))


def test_orders(checkout: Path, shell: Shell) -> None:
    def look() -> None:
        url = PostgresServer(checkout / EXAMPLES / ".onefold/local").url
        wanted = [
            (row["id"], row["account"], Decimal(row["amount"]), datetime.fromisoformat(row["at"]))
            for row in sample("orders/orders.jsonl")
            if Decimal(row["amount"]) > 0
        ]
        assert selected(url, "SELECT id, account, amount, at FROM orders ORDER BY id") == wanted

    type_page(EXAMPLES / "orders/README.md", shell, look)


def test_profile(checkout: Path, shell: Shell) -> None:
    of_visitors: dict[str, list[dict[str, Any]]] = {}
    for event in sample("profile/events.jsonl"):
        of_visitors.setdefault(event["visitor"], []).append(event)
    wanted = [
        {
            "visitor": visitor,
            "events": len(events),
            "spent": sum(Decimal(event["spent"]) for event in events),
            "last_seen": datetime.fromisoformat(max(event["at"] for event in events)),
            "city": max((event["at"], event["city"]) for event in events)[1],
            "topics": sorted({event["topic"] for event in events}),
        }
        for visitor, events in sorted(of_visitors.items())
    ]
    columns = {"visitor": pa.string(), "events": pa.int64(), "spent": pa.decimal128(38, 2)}
    columns |= {"last_seen": pa.timestamp("us", "UTC"), "city": pa.string(), "topics": pa.list_(pa.string())}

    def look() -> None:
        servers = HBaseServer(checkout / EXAMPLES / ".onefold/local").servers
        source = HBaseSource(servers, "profiles", row_key="visitor", family="p")
        parts = source.parts(pa.schema(columns))
        found = [row for part in parts for batch in source.batches(part) for row in batch.to_pylist()]
        assert sorted(found, key=lambda row: row["visitor"]) == wanted

    type_page(EXAMPLES / "profile/README.md", shell, look)


def test_enrich_by_sql_and_by_arrow(checkout: Path, shell: Shell) -> None:
    rates = {"EUR": Decimal(1), "USD": Decimal("0.9250"), "CZK": Decimal("0.0396")}

    def look() -> None:
        kafka = KafkaServer(checkout / EXAMPLES / ".onefold/local").bootstrap_servers
        by_sql, by_arrow = (sorted(records(topic, kafka), key=lambda row: row["id"]) for topic in TOPICS)
        assert by_sql == by_arrow
        assert [row["id"] for row in by_sql] == [row["id"] for row in sample("enrich/payments.jsonl")]
        for row in by_sql:
            assert abs(Decimal(row["euro"]) - Decimal(row["amount"]) * rates[row["currency"]]) <= Decimal("0.005")

    type_page(EXAMPLES / "enrich/README.md", shell, look)


def test_mirror(checkout: Path, shell: Shell) -> None:
    newest: dict[int, dict[str, Any]] = {}
    for change in sample("mirror/customers.jsonl"):
        if change["id"] not in newest or change["version"] > newest[change["id"]]["version"]:
            newest[change["id"]] = change
    wanted = [
        (row["id"], row["version"], row["name"], row["email"])
        for row in sorted(newest.values(), key=lambda row: row["id"])
        if not row["gone"]
    ]

    def look() -> None:
        engine = sa.create_engine(f"sqlite:///{checkout / EXAMPLES / 'mirror/mirror.db'}")
        with engine.connect() as connection:
            found = connection.execute(sa.text("SELECT id, version, name, email FROM customers ORDER BY id")).all()
        engine.dispose()
        assert [tuple(row) for row in found] == wanted

    type_page(EXAMPLES / "mirror/README.md", shell, look)
