"""docs/existing-table.md: its commands are typed, on a table that others write to meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from harness.support import wait_until
from harness.transcripts import Shell, check, steps

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("psql") is None, reason="the page alters the table with psql"),
]
PAGE = Path(__file__).parents[2] / "docs/existing-table.md"
TABLE = """
CREATE SCHEMA shop;
CREATE TABLE shop.accounts (id integer PRIMARY KEY);
CREATE TABLE shop.orders (
  id bigint PRIMARY KEY,
  account integer NOT NULL REFERENCES shop.accounts,
  amount numeric(12,2) NOT NULL CHECK (amount > 0),
  at timestamptz NOT NULL,
  status text NOT NULL DEFAULT 'loaded',
  number bigint GENERATED ALWAYS AS IDENTITY,
  cents bigint GENERATED ALWAYS AS ((amount * 100)::bigint) STORED
);
CREATE INDEX ON shop.orders (account, at);
CREATE TABLE shop.audit (id bigint, operation text);
CREATE FUNCTION shop.note() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO shop.audit VALUES (NEW.id, TG_OP); RETURN NULL; END $$;
CREATE TRIGGER audited AFTER INSERT OR UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.note();

INSERT INTO shop.accounts SELECT generate_series(0, 6);
INSERT INTO shop.orders (id, account, amount, at, status)
SELECT n, n % 7, n, timestamptz '2026-01-01' + n * interval '1 hour', 'paid' FROM generate_series(1, 1000) n;
"""
NEWER = range(901, 1601)


@dataclass
class Others:
    """People who enter orders by hand, until they are stopped."""

    url: str
    entered: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._enter)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _enter(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self._stopped.wait(0.02):
                self.entered += 1
                connection.execute(
                    "INSERT INTO shop.orders (id, account, amount, at, status) VALUES (%s, 1, 5, now(), 'by hand')",
                    [100_000 + self.entered],
                )


class Place:
    """A shell beside a database with the table, a topic with newer orders, and a role for onefold."""

    def __init__(self, shell: Shell, url: str, topic: str, role: str) -> None:
        self.shell, self.url, self.topic, self.role = shell, url, topic, role

    def page(self) -> str:
        text = re.sub(r"\bloader\b", self.role, PAGE.read_text()).replace(
            'topics = "orders"', f'topics = "{self.topic}"'
        )
        return text.replace("FROM orders UNION", f"FROM `{self.topic}` UNION")

    def asked(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(query.encode()).fetchall()

    def wait(self, query: str, count: int) -> None:
        wait_until(lambda: self.asked(query) == [(count,)], query)


@pytest.fixture
def place(postgres_url: str, kafka: Any, kafka_topic: Any, tmp_path: Path) -> Iterator[Place]:
    topic, role = kafka_topic(partitions=3), f"loader_{os.getpid()}"
    with psycopg.connect(postgres_url) as connection:
        connection.execute(TABLE.encode())
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in NEWER:
        order = {
            "id": number,
            "account": number % 7,
            "amount": f"{number + 1}.25",
            "at": f"2026-11-20T00:{number % 60:02}:00Z",
        }
        producer.produce(topic, json.dumps(order), str(number))
    assert producer.flush(60) == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    loader = re.sub(r"//[^@]*@", f"//{role}@", postgres_url)
    given = {"KAFKA": kafka.bootstrap_servers, "POSTGRES": postgres_url, "LOADER": loader, "ONEFOLD_LISTEN": address}
    with closing(Shell(tmp_path, {**os.environ, **given})) as shell:
        yield Place(shell, postgres_url, topic, role)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_table_with_rows_is_taken_on_rehearsed_verified_and_given_back(place: Place) -> None:
    entering: Others | None = None
    before = place.asked("SELECT id, account, amount, at, status FROM shop.orders ORDER BY id")
    kills = iter(("rehearsal", "orders"))
    try:
        for step in steps(place.page()):
            if step.command.startswith("onefold doctor"):
                entering = Others(place.url)
            elif step.command.startswith("kill"):
                table = next(kills)
                place.wait(f"SELECT count(*) FROM shop.{table} WHERE at >= '2026-11-20' AND status <> 'by hand'", 700)
            check(step, place.shell.run(step.command, 300).replace(place.topic, "orders"))
            if step.command.startswith("onefold verify whole.toml"):
                newest = (
                    "SELECT count(*), count(*) FILTER (WHERE status = 'paid'), count(DISTINCT number) FROM shop.orders"
                )
                assert place.asked(f"{newest} WHERE status <> 'by hand'") == [(1600, 1000, 1600)]
                wrong = "SELECT count(*) FROM shop.orders WHERE cents <> amount * 100"
                assert place.asked(wrong) == [(0,)]
                assert place.asked(
                    "SELECT operation, count(*) FROM shop.audit WHERE id BETWEEN 901 AND 1600 GROUP BY 1 ORDER BY 1"
                ) == [("INSERT", 600 + 100), ("UPDATE", 100)]
    finally:
        if entering is not None:
            entering.stop()
    assert (
        place.asked("SELECT id, account, amount, at, status FROM shop.orders WHERE status <> 'by hand' ORDER BY id")
        == before
    )
    assert place.asked("SELECT count(*) FROM shop.orders WHERE status = 'by hand'") == [
        (entering and entering.entered,)
    ]
    assert place.asked("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'onefold%'") == []
