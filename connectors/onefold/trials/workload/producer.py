"""Writes orders in transactions until it is told to end: `python -m onefold.trials.workload.producer ORDERS.json`.

It may be killed at any moment: the next one ends the transaction that was left open, looks in the topic which order
was the last, and goes on. Now and then it aborts a transaction and writes the same orders again, so that the topic also
has records that nobody may see.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from onefold.trials.workload.mixed import ACCOUNTS, mixed_orders
from onefold.trials.workload.orders import orders
from onefold.trials.workload.topic import end_offsets, read
from onefold.trials.workload.workload_settings import PARTITIONS, TOPIC

ENDLESS = 1_000_000_000
TAIL = 5_000  # offsets from the end of a partition, among which the last committed order is
WAIT_S = 60.0
_NUMBER = re.compile(rb'\{"(?:number|id)":(\d+)')


@dataclass(frozen=True, slots=True)
class Orders:
    bootstrap_servers: str
    seed: int
    per_s: int
    mode: str = "append"
    bad_rows: bool = False
    unreadable: bool = False  # what the bad ones are
    accounts: int = ACCOUNTS

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    def stream(self) -> Iterator[bytes]:
        if self.mode == "append" and not self.bad_rows and self.accounts == ACCOUNTS:
            return orders(ENDLESS, self.seed)
        return mixed_orders(
            ENDLESS, self.seed, self.mode, self.bad_rows, unreadable=self.unreadable, accounts=self.accounts
        )


def main() -> int:
    told = Orders(**json.loads(Path(sys.argv[1]).read_text()))
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    parent, rng = os.getppid(), random.Random()
    producer = Producer(
        {
            "bootstrap.servers": told.bootstrap_servers,
            "transactional.id": "onefold-orders",
            "linger.ms": 5,
            "compression.type": "lz4",
            "log_level": 0,
        }
    )
    _retry(lambda: producer.init_transactions(WAIT_S))
    first = _next_order(told.bootstrap_servers)
    stream = itertools.islice(told.stream(), first, None)
    number, due_s = first, time.monotonic()
    print("writing", flush=True)
    while not ending and os.getppid() == parent:
        batch = list(itertools.islice(stream, rng.randrange(10, told.per_s)))
        if rng.random() < 0.1:
            _transaction(producer, number, batch, keep=False)
        while not _transaction(producer, number, batch, keep=True):
            pass
        number += len(batch)
        due_s = max(due_s + len(batch) / told.per_s, time.monotonic() - 1.0)
        time.sleep(max(0.0, due_s - time.monotonic()))
    return 0


def _next_order(bootstrap_servers: str) -> int:
    end = end_offsets(bootstrap_servers, TOPIC, PARTITIONS)
    tail = read(bootstrap_servers, TOPIC, {p: max(0, offset - TAIL) for p, offset in end.items()})
    return max(map(number_of, tail.values()), default=-1) + 1


def number_of(order: bytes) -> int:
    """Also of one that is no JSON: the number comes first."""
    found = _NUMBER.match(order)
    assert found is not None, order
    return int(found[1])


def _transaction(producer: Producer, first: int, batch: list[bytes], keep: bool) -> bool:
    """True once it is committed; False if it was aborted, and nothing of it will be seen."""
    producer.begin_transaction()
    try:
        for number, order in enumerate(batch, start=first):
            producer.produce(TOPIC, order, partition=number % PARTITIONS)
        if keep:
            _retry(lambda: producer.commit_transaction(WAIT_S))
            return True
        producer.flush(WAIT_S)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
    _retry(lambda: producer.abort_transaction(WAIT_S))
    return False


def _retry(call: Callable[[], object]) -> None:
    """A call that may be sent again for as long as its error says so, as librdkafka's transactional ones may."""
    for _ in _tries():
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _tries() -> Iterator[int]:
    yield 0
    for attempt in range(1, 100):
        time.sleep(0.2)
        yield attempt
    raise RuntimeError("Kafka has not answered for too long")


if __name__ == "__main__":
    sys.exit(main())
