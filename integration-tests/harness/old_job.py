"""A job that onefold takes over from: at least once, Debezium's changes from a topic into the table `orders`.

    python old_job.py SERVERS TOPIC GROUP URL [KILLED_AFTER]

Each batch is written, and then its offsets are committed. SIGTERM ends it between two batches; with KILLED_AFTER it
kills itself after so many, before the last one's offsets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import psycopg
from confluent_kafka import Consumer

_UPSERT = b"""
INSERT INTO orders (id, account, amount) VALUES (%s, %s, %s)
ON CONFLICT (id) DO UPDATE SET account = excluded.account, amount = excluded.amount
"""


def run(servers: str, topic: str, group: str, url: str, killed_after: int = 0) -> None:
    settings = {"bootstrap.servers": servers, "group.id": group, "session.timeout.ms": 6000}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    batches = 0
    with psycopg.connect(url, autocommit=True) as connection:
        while not stopped:
            if records := consumer.consume(100, 0.5):
                _write(connection, records)
                batches += 1
                if batches == killed_after:
                    os.kill(os.getpid(), signal.SIGKILL)
                consumer.commit(asynchronous=False)
    consumer.close()


def _write(connection: psycopg.Connection[Any], records: list[Any]) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        for record in records:
            key, after = json.loads(record.key())["id"], json.loads(record.value() or b"{}").get("after")
            if after is None:
                cursor.execute("DELETE FROM orders WHERE id = %s", (key,))
            else:
                cursor.execute(_UPSERT, (key, after["account"], after["amount"]))


if __name__ == "__main__":
    run(*sys.argv[1:5], *map(int, sys.argv[5:]))
