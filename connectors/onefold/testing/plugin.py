"""The pytest plugin: real servers as fixtures, one of each for a run, and a fresh topic, database or table for a test.

Loaded wherever onefold is installed, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from onefold.clients.hbase import HBaseTable
    from onefold.flow import Flow
    from onefold.flow.testing import FlowTest
    from onefold.testing.servers import Servers

_DROP_S_MAX = 20.0
_LED_S_MAX = 60.0
_CONNECT_S_MAX = 10
_TOPIC_S_MAX = 30.0
_SERVERS = pytest.StashKey["Servers"]()
_MARKER = "only_with_servers(*kinds, reason): for servers of these kinds (ONEFOLD_SERVERS), for this reason"
_OF_KAFKA_PYTHON = "ignore:(read|open)_text is deprecated:DeprecationWarning"  # 200 of them, on import


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    config.addinivalue_line("filterwarnings", _OF_KAFKA_PYTHON)


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("only_with_servers")
    if marker is None:
        return
    from onefold.testing.servers import ServerKind, server_kind

    kinds = set(marker.args)
    if not kinds or kinds - set(ServerKind):  # it would be skipped for ever
        pytest.fail(f"only_with_servers names some of {', '.join(ServerKind)}, and not {marker.args}", pytrace=False)
    if server_kind() not in kinds:
        reason = marker.kwargs.get("reason", "not for these servers")
        pytest.skip(f"{reason}: only with ONEFOLD_SERVERS={' or '.join(marker.args)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed may have left a server cut off, paused or dead: the next one finds it up."""
    report = yield
    servers = item.config.stash.get(_SERVERS, None)
    if servers is not None and call.when == "call" and report.failed:
        try:
            servers.bring_back()
        except Exception as error:  # the test's own failure is what has to be read first
            report.sections.append(("servers that the test left", f"not brought back: {error}"))
    return report


@pytest.fixture
def flow_test() -> Iterator[Callable[..., FlowTest]]:
    """A function that makes an `onefold.flow.testing.FlowTest`: a flow without servers, epoch by epoch."""
    from onefold.flow.testing import FlowTest

    with ExitStack() as opened:

        def make(flow: Flow, **settings: Any) -> FlowTest:
            return opened.enter_context(closing(FlowTest(flow, **settings)))

        yield make


@pytest.fixture(scope="session")
def onefold_servers(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Servers]:
    """For a test that needs a server of its own: `with onefold_servers.postgres(settings={...}) as server:`."""
    from onefold.core.extras import naming_extras

    with naming_extras():
        from onefold.testing.servers import Servers

        servers = Servers(lambda name: tmp_path_factory.mktemp(name))
    pytestconfig.stash[_SERVERS] = servers
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
def kafka_topic(kafka: Any) -> Iterator[Callable[..., str]]:
    """A factory of fresh topics: `kafka_topic(partitions=4, config={...})` answers with the name."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
    from confluent_kafka.cimpl import NewTopic

    from onefold.testing.servers import ExternalServer

    made: list[str] = []
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def create(partitions: int = 4, config: dict[str, str] | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        try:
            admin.create_topics([topic])[name].result(_TOPIC_S_MAX)
        except TimeoutError:
            pytest.fail(f"Kafka at {kafka.bootstrap_servers} has made no topic in {_TOPIC_S_MAX:.0f} s", pytrace=False)
        made.append(name)
        deadline = time.monotonic() + _LED_S_MAX
        while why := unled(name, partitions):  # a broker that is busy begins to lead a new topic only after it is made
            if time.monotonic() > deadline:
                pytest.fail(f"no broker leads all partitions of the new topic {name} after {_LED_S_MAX:.0f} s: {why}")
            time.sleep(0.02)
        return name

    def unled(name: str, partitions: int) -> str:
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}  # type: ignore[no-untyped-call]
        # a client of its own each time: one that has seen the topic without a leader may go on to believe it
        asking = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        try:
            for answer in asking.list_offsets(wanted, request_timeout=5).values():
                answer.result(10)
        except (KafkaException, TimeoutError) as error:
            return str(error)
        return ""

    yield create
    if made and isinstance(kafka, ExternalServer):  # ours goes with its topics
        for deleted in admin.delete_topics(made).values():
            with suppress(KafkaException):  # the test has deleted it
                deleted.result(_TOPIC_S_MAX)


@pytest.fixture
def postgres_url(postgres: Any) -> Iterator[str]:
    """The URL of an empty database of the test's own. What a test leaves prepared in it is rolled back."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with _connected(postgres.url) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield postgres.url_of(name)
    deadline = time.monotonic() + _DROP_S_MAX
    while not _dropped(postgres, name):
        if time.monotonic() > deadline:
            pytest.fail(
                f"the test still prepares transactions in its database {name} {_DROP_S_MAX:.0f} s after its end"
            )
        time.sleep(0.02)


def _connected(url: str) -> psycopg.Connection[Any]:
    import psycopg

    return psycopg.connect(url, autocommit=True, connect_timeout=_CONNECT_S_MAX)


def _dropped(postgres: Any, name: str) -> bool:
    """False where a task of a query that was stopped has prepared something just now."""
    import psycopg

    with _connected(postgres.url) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall():
            with _connected(postgres.url_of(name)) as there:
                there.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(gid))
        try:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        except psycopg.errors.ObjectInUse:
            return False
    return True


@pytest.fixture
def hbase_table(hbase: Any) -> Iterator[Callable[..., HBaseTable]]:
    """A factory of fresh tables of one family `f`: `hbase_table(versions_max=2, split_keys=[b"m"])`."""
    from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable, table_admin

    settings = HBaseSettings(hbase.servers)
    made: list[str] = []

    def create(versions_max: int = 1, ttl_s: int | None = None, split_keys: Sequence[bytes] = ()) -> HBaseTable:
        made.append(f"test_{uuid.uuid4().hex[:12]}")
        table_admin.create(settings, made[-1], [ColumnFamily(b"f", versions_max, ttl_s)], split_keys)
        return HBaseTable(settings, made[-1])

    yield create
    for name in made:
        table_admin.drop(settings, name)
