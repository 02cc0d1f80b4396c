"""The pytest plugin: real servers as fixtures, one of each for a run, and a fresh topic, database or table for a test.

Loaded wherever onefold is installed, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onefold.clients.hbase import HBaseTable
    from onefold.testing.servers import Servers

__all__ = [
    "hbase",
    "hbase_table",
    "kafka",
    "kafka_topic",
    "onefold_servers",
    "postgres",
    "postgres_url",
    "spark_cluster",
]

_DROP_S_MAX = 20.0
_LED_S_MAX = 20.0
_MARKER = "only_with_servers(*kinds, reason): for servers of these kinds (ONEFOLD_SERVERS), for this reason"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("only_with_servers")
    kind = os.environ.get("ONEFOLD_SERVERS") or "local"
    if marker is not None and kind not in marker.args:
        pytest.skip(f"{marker.kwargs['reason']}: only with ONEFOLD_SERVERS={' or '.join(marker.args)}")


@pytest.fixture(scope="session")
def onefold_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """For a test that needs a server of its own: `with onefold_servers.postgres(settings={...}) as server:`."""
    from onefold.core.extras import naming_extras

    with naming_extras():
        from onefold.testing.servers import Servers

        servers = Servers(lambda name: tmp_path_factory.mktemp(name))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def kafka(onefold_servers: Servers) -> Iterator[Any]:
    """A broker; clients need its `bootstrap_servers`."""
    with onefold_servers.running("kafka") as server:
        yield server


@pytest.fixture(scope="session")
def postgres(onefold_servers: Servers) -> Iterator[Any]:
    """A Postgres with prepared transactions; clients need its `url`."""
    with onefold_servers.running("postgres") as server:
        yield server


@pytest.fixture(scope="session")
def hbase(onefold_servers: Servers) -> Iterator[Any]:
    """An HBase; clients need `servers`, its Thrift2 servers. `thrift1.start()` adds the older interface."""
    with onefold_servers.running("hbase") as server:
        yield server


@pytest.fixture(scope="session")
def spark_cluster(onefold_servers: Servers) -> Iterator[Any]:
    """A Spark master and two workers; a session needs its `url`, and `environment` set before it starts."""
    with onefold_servers.running("spark_cluster") as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(kafka: Any) -> Callable[..., str]:
    """A factory of fresh topics: `kafka_topic(partitions=4, config={...})` answers with the name."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def create(partitions: int = 4, config: dict[str, str] | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([topic])[name].result(30)
        deadline = time.monotonic() + _LED_S_MAX
        while not is_led(name, partitions):  # a broker that is busy begins to lead a new topic only after it is made
            if time.monotonic() > deadline:
                pytest.fail(f"no broker leads all partitions of the new topic {name} after {_LED_S_MAX:.0f} s")
            time.sleep(0.02)
        return name

    def is_led(name: str, partitions: int) -> bool:
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        try:
            for answer in admin.list_offsets(wanted, request_timeout=5).values():
                answer.result(10)
        except KafkaException:
            return False
        return True

    return create


@pytest.fixture
def postgres_url(postgres: Any) -> Iterator[str]:
    """The URL of an empty database of the test's own. What a test leaves prepared in it is rolled back."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield postgres.url_of(name)
    deadline = time.monotonic() + _DROP_S_MAX
    while not _dropped(postgres, name):
        if time.monotonic() > deadline:
            pytest.fail(
                f"the test still prepares transactions in its database {name} {_DROP_S_MAX:.0f} s after its end"
            )
        time.sleep(0.02)


def _dropped(postgres: Any, name: str) -> bool:
    """False where a task of a query that was stopped has prepared something just now."""
    import psycopg

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall():
            with psycopg.connect(postgres.url_of(name), autocommit=True) as there:
                there.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        try:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        except psycopg.errors.ObjectInUse:
            return False
    return True


@pytest.fixture
def hbase_table(hbase: Any) -> Iterator[Callable[..., HBaseTable]]:
    """A factory of fresh tables of one family `f`: `hbase_table(versions_max=2, split_keys=[b"m"])`."""
    from onefold.clients.hbase import Family, HBaseSettings, HBaseTable, tables

    settings = HBaseSettings(hbase.servers)
    made: list[str] = []

    def create(versions_max: int = 1, ttl_s: int | None = None, split_keys: Sequence[bytes] = ()) -> HBaseTable:
        made.append(f"test_{uuid.uuid4().hex[:12]}")
        tables.create(settings, made[-1], [Family(b"f", versions_max, ttl_s)], split_keys)
        return HBaseTable(settings, made[-1])

    yield create
    for name in made:
        tables.drop(settings, name)
