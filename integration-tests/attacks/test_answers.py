"""Brokers and Thrift servers whose answers have other bytes than they should: only named errors come out of them."""

from __future__ import annotations

import random
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from onefold.clients.hbase import Cells, HBaseSettings, HBaseTable, table_admin
from onefold.clients.hbase.pool import pool
from onefold.clients.hbase.table_admin import ColumnFamily
from onefold.clients.kafka.broker_connection import WireConnection
from onefold.clients.kafka.cluster import Cluster
from onefold.core import OnefoldError
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.transactional import txn_admin

pytestmark = [pytest.mark.servers, pytest.mark.slow]
SEED = 5


class Changing:
    """Changes some bytes of some of the answers, behind the first `spared`."""

    def __init__(self, spared: int) -> None:
        self.chance, self.spared, self.rate = random.Random(SEED), spared, 0.0

    def __call__(self, answer: bytes) -> bytes:
        chance, data = self.chance, bytearray(answer)
        if len(data) <= self.spared or chance.random() >= self.rate:
            return answer
        for _ in range(chance.choice([1, 1, 2, 5])):
            data[chance.randrange(self.spared, len(data))] = chance.choice(
                [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
            )
        if chance.random() < 0.1:
            del data[chance.randrange(self.spared, len(data)) :]
        return bytes(data)


def outcomes(changing: Changing, rounds: int, ask: Callable[[], object]) -> Counter[str]:
    """How often which error came out; any that has no name fails the test."""
    found: Counter[str] = Counter()
    for _ in range(rounds):
        changing.rate = changing.chance.choice([0.2, 0.5, 1.0])
        try:
            ask()
            found["answered"] += 1
        except OnefoldError as error:
            found[error.code] += 1
        finally:
            changing.rate = 0.0
    return found


@pytest.mark.attack(
    who="a broker, or who changes its answers on the way",
    does="changes bytes of what it answers to the sink's own requests",
    gets="to be asked again, or a stop that names it",
)
def test_no_changed_answer_of_a_broker_is_an_error_without_a_name(
    kafka_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=1)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(topic, b"v" * 20, b"k%d" % number, headers=[("h", b"x")])
        end(30)
    changing, receive = Changing(spared=4), WireConnection._receive  # the number of the request: another test has it
    monkeypatch.setattr(WireConnection, "_receive", lambda self: changing(receive(self)))
    ended = Handle(topic, 10**6, 0)
    asks: list[Callable[[Cluster], object]] = [
        txn_admin.check_versions,
        lambda kafka: txn_admin.describe(kafka, [topic]),
        lambda kafka: txn_admin.list_ids(kafka, "test_", "CompleteCommit"),
        lambda kafka: list(txn_admin.read_log(kafka, topic, 0)),
        lambda kafka: txn_admin.end(kafka, [ended], commit=False),
    ]

    def ask() -> None:
        with closing(Cluster(servers, {}, 0.2)) as kafka:
            changing.chance.choice(asks)(kafka)

    found = outcomes(changing, 400, ask)
    assert found["answered"] > 20 and found["kafka-unanswered"] > 20, found


@contextmanager
def between(address: tuple[str, int], changing: Changing) -> Iterator[str]:
    """A server whose answers are those at the address, as `changing` has them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def carry(one: socket.socket, other: socket.socket, change: Callable[[bytes], bytes]) -> None:
            try:
                while some := one.recv(1 << 16):
                    other.sendall(change(some))
            except OSError:
                pass
            for each in (one, other):
                each.close()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                there = socket.create_connection(address)
                for ways in ((client, there, bytes), (there, client, changing)):
                    threading.Thread(target=carry, args=ways, daemon=True).start()

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


@pytest.mark.xdist_group("hbase")
@pytest.mark.attack(
    who="a Thrift server of HBase, or who changes its answers on the way",
    does="changes bytes of what it answers",
    gets="to be asked again, or a stop that names it",
)
def test_no_changed_answer_of_hbase_is_an_error_without_a_name(hbase_server: Any) -> None:
    real, name = HBaseSettings(hbase_server.servers), f"test_{uuid.uuid4().hex[:12]}"
    table_admin.create(real, name, [ColumnFamily(b"f")], [b"k5"])
    keys = pa.array([b"k%d" % number for number in range(10)], pa.binary())
    guard, value = Cells(b"f", b"g", keys), Cells(b"f", b"q", keys)
    HBaseTable(real, name).put(keys, [guard, value], 1_700_000_000_000)
    columns, changing = [(b"f", b"g"), (b"f", b"q")], Changing(spared=0)
    address = real.addresses()[0]
    with between((address.host, address.port), changing) as servers:
        settings = HBaseSettings(servers, timeout_s=0.3)
        table = HBaseTable(settings, name, repeats=False)
        asks: list[Callable[[], object]] = [
            lambda: table.get(keys, columns),
            lambda: list(table.scan(b"", b"", columns)),
            lambda: table.has_newer(b"", b"", [b"f"], 1),
            table.regions,
            lambda: table_admin.describe(settings, name),
            lambda: table_admin.ensure(settings, name, [ColumnFamily(b"f")]),
            lambda: table.put(keys, [value], 1_700_000_000_001),
            lambda: table.put_if_equal(keys, guard, keys, [value]),
        ]
        found = outcomes(changing, 300, lambda: changing.chance.choice(asks)())
        pool(settings).close()
    table_admin.drop(real, name)
    assert found["answered"] > 20 and found["hbase-unanswered"] > 50, found
