"""Orders: JSON records of about 70 bytes, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def orders(rows: int, seed: int) -> Iterator[bytes]:
    """One order after another; about one in a hundred is a refund, with a negative amount."""
    rng = random.Random(seed)
    second = ""
    for number in range(rows):
        if number % 1000 == 0:
            second = (_FIRST + timedelta(seconds=number // 1000)).strftime("%Y-%m-%dT%H:%M:%S")
        cents = rng.randrange(-1000, 100_000)
        amount = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02d}"
        account = rng.randrange(1, 100_000)
        at = f"{second}.{number % 1000:03d}457Z"
        yield f'{{"id":{number},"account":{account},"amount":{amount},"at":"{at}"}}'.encode()


def produce(
    bootstrap_servers: str, topic: str, partitions: int, rows: int, seed: int, advance: Callable[[int], None]
) -> None:
    """Send the orders round robin; returns when the broker has acknowledged all of them."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "log_level": "3",  # a coordinator that is still loading is no news
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, order in enumerate(orders(rows, seed)):
        while True:
            try:
                producer.produce(topic, order, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 20_000 == 19_999:
            producer.poll(0)
            advance(20_000)
    unsent = producer.flush(60)
    if unsent:
        raise RuntimeError(f"the broker at {bootstrap_servers} did not acknowledge {unsent} orders within 60 s")
    advance(rows % 20_000)
