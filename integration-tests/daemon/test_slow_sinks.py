"""`onefold run` with a full topic before a sink that is slow, or away for a while: intake pauses, memory stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.daemons import SQL, Daemon, Start, is_whole, rows, verify, write
from harness.passwords import plain_url
from harness.support import Rig
from pyspark.sql import SparkSession

from bench.soak import Memory, memory_of
from onefold.local import KafkaServer, PostgresServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]
RECORDS, AT_MOST = 400_000, 20_000
AWAY_S, SETTLED_S = 20.0, 8.0
GROWTH_MB_MAX = 40.0  # of each kind of process, once what ran when the sink went away is at a standstill
Server = PostgresServer | KafkaServer


@contextmanager
def suspended(server: Server) -> Iterator[None]:
    """It holds its connections, and answers nothing."""
    pid = server.status().pid
    assert pid is not None
    server_process = psutil.Process(pid)
    for process in [server_process, *server_process.children(recursive=True)]:
        process.suspend()
    try:
        yield
    finally:
        for process in [server_process, *server_process.children(recursive=True)]:
            process.resume()


@contextmanager
def down(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def slow(server: Server) -> Iterator[None]:
    """Each row takes a millisecond."""
    assert isinstance(server, PostgresServer)
    wait = "CREATE OR REPLACE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
    with psycopg.connect(plain_url(server), autocommit=True) as connection:
        connection.execute(f"{wait} $$BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END$$".encode())
        try:
            yield
        finally:
            connection.execute(f"{wait} $$BEGIN RETURN NEW; END$$".encode())


def watched(daemon: Daemon) -> list[Memory]:
    """Its memory, every second of it."""
    began_s = time.monotonic()
    samples = []
    while (second := time.monotonic() - began_s) < AWAY_S:
        samples.append(memory_of(daemon.process.pid, second))
        time.sleep(1)
    return samples


def assert_flat(samples: list[Memory]) -> None:
    settled = [one for one in samples if one.second >= SETTLED_S]
    for kind in ("driver_mb", "jvm_mb", "workers_mb"):
        found = [getattr(one, kind) for one in settled]
        print(f"{kind}: {min(found)} to {max(found)}, {found[0]} after {SETTLED_S} s, {found[-1]} at the end")
        assert max(found) - found[0] < GROWTH_MB_MAX, (kind, found)


@pytest.fixture
def own(
    spark: SparkSession, kafka_server: KafkaServer, kafka_topic: Callable[..., str], tmp_path: Path
) -> Iterator[tuple[Rig, PostgresServer]]:
    """A full topic, and a Postgres that may go away."""
    with PostgresServer(tmp_path) as server:
        address = kafka_server.bootstrap_servers
        with closing(Rig(spark, address, kafka_topic(partitions=4), plain_url(server), tmp_path)) as rig:
            for _ in range(RECORDS // AT_MOST):
                rig.put(AT_MOST)
            yield rig, server


@pytest.mark.parametrize("tables", ["", SQL], ids=["direct", "sql"])
@pytest.mark.parametrize("away", [suspended, down, slow])
def test_a_postgres_that_is_slow_or_away_for_a_while_holds_the_intake_back_and_no_memory_grows(
    own: tuple[Rig, PostgresServer], start: Start, away: Callable[[Server], AbstractContextManager[None]], tables: str
) -> None:
    rig, server = own
    rig.sql("CREATE TABLE rows (id bigint, n bigint)")
    if away is slow:
        rig.sql("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
        rig.sql("CREATE TRIGGER waits BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION wait()")

    def count() -> int:
        return int(rig.sql("SELECT count(*) FROM rows")[0][0])

    daemon = start(write(rig, tables, at_most=AT_MOST))
    daemon.until(lambda: count() >= 2 * AT_MOST, "two epochs")
    with away(server):
        samples = watched(daemon)
    assert_flat(samples)
    assert count() < RECORDS, "there was more to read all the time"
    daemon.until(lambda: count() >= RECORDS, "all rows")
    daemon.stop()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def test_brokers_of_a_kafka_sink_that_hang_for_a_while_hold_the_intake_back_and_no_memory_grows(
    own: tuple[Rig, PostgresServer], start: Start
) -> None:
    rig, _ = own
    with KafkaServer(rig.directory) as broker:
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}).create_topics([NewTopic("out", 1)])["out"].result(
            60
        )
        path = write(rig, at_most=AT_MOST)
        sink = f'kind = "kafka"\ntopic = "out"\nbootstrap_servers = "{broker.bootstrap_servers}"\n'
        path.write_text(path.read_text().replace(f'kind = "postgres"\nurl = "{rig.url}"\ntable = "rows"\n', sink))
        daemon = start(path)
        daemon.until(lambda: daemon.epochs() >= 2, "two epochs", 200)
        with suspended(broker):
            samples = watched(daemon)
        assert daemon.process.poll() is None, daemon.text()
        assert_flat(samples)
        assert daemon.epochs() < RECORDS // AT_MOST, "there was more to read all the time"
        daemon.until(lambda: daemon.epochs() >= RECORDS // AT_MOST, "all rows", 200)
        daemon.stop()
        verify(path)
