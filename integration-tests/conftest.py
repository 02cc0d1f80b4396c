"""Real servers for the tests: started once in a process, on free ports, stopped at its end.

`ONEFOLD_TEST_POSTGRES` and `ONEFOLD_TEST_KAFKA` name servers to be used instead; tests that kill a server then skip.
Where MariaDB is not installed and can't be fetched either, its tests skip, with the reason.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.calls import Ask
from harness.lives import MakeWorld, worlds
from harness.passwords import let_roles_in, plain_url
from harness.support import Rig, wait_until
from harness.tables.sql_bench import Bench, Make
from pyspark.sql import SparkSession

from onefold.cli.spark_session import spark_session
from onefold.cli.txn.transactions import Transactions
from onefold.clients.hbase import Family, HBaseSettings, HBaseTable, tables
from onefold.local import HBaseServer, KafkaServer, LocalServerError, MariaDbServer, PostgresServer
from onefold.local.mariadb.binaries import mariadb_binaries
from onefold.sinks.postgres.admin import Operations


class _Named:
    """A server that somebody else started, and that no test may kill."""

    def __init__(self, address: str) -> None:
        self.url = self.bootstrap_servers = address

    def kill(self) -> None:
        pytest.skip("this server is not ours to kill")

    def start(self) -> None:
        """It runs already."""


@pytest.fixture(scope="session", autouse=True)
def _quick_compiler() -> Iterator[None]:
    """Here no JVM lives long enough for the second compiler, which would take a third of the suite's CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _passwords(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where libpq looks for a password that a URL does not name: tests' URLs are bare, to make others of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSFILE", str(tmp_path_factory.mktemp("passwords") / "pgpass"))
        yield


@pytest.fixture(scope="session")
def servers_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def postgres_server(servers_directory: Path) -> Iterator[PostgresServer | _Named]:
    if address := os.environ.get("ONEFOLD_TEST_POSTGRES"):
        yield _Named(address)
        return
    with PostgresServer(servers_directory) as server:
        let_roles_in(server)
        yield server


@pytest.fixture(scope="session")
def kafka_server(servers_directory: Path) -> Iterator[KafkaServer | _Named]:
    if address := os.environ.get("ONEFOLD_TEST_KAFKA"):
        yield _Named(address)
        return
    with KafkaServer(servers_directory) as server:
        yield server


@pytest.fixture(scope="session")
def hbase_server(servers_directory: Path) -> Iterator[HBaseServer]:
    """HBase with its Thrift2 server at `servers`. `thrift1.start()` adds the older interface, happybase's."""
    with HBaseServer(servers_directory) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server(servers_directory: Path) -> Iterator[MariaDbServer]:
    try:
        mariadb_binaries()
    except LocalServerError as error:
        pytest.skip(str(error))
    with MariaDbServer(servers_directory) as server:
        yield server
    shutil.rmtree(server.data)  # as root they are outside of pytest's own folder


@pytest.fixture
def mariadb_url(mariadb_server: MariaDbServer) -> Iterator[str]:
    """An empty database of the test's own."""
    name, engine = f"test_{uuid.uuid4().hex[:12]}", sa.create_engine(mariadb_server.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield mariadb_server.url_of(name)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name}"))
    engine.dispose()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database of the test's own. The test must leave nothing prepared in it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield plain_url(postgres_server, name)
    wait_until(lambda: _dropped(postgres_server, name), 20, f"dropping {name}")


def _dropped(server: PostgresServer, name: str) -> bool:
    """False where a task of a query that was stopped has prepared something just now."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall():
            with psycopg.connect(plain_url(server, name), autocommit=True) as there:
                there.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        try:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        except psycopg.errors.ObjectInUse:
            return False
    return True


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind that SqlSink knows, in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rows.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def bench() -> Iterator[Make]:
    """A factory of SqlSinks, each with a store and epochs through both: `bench(url, table, mode="upsert", ...)`."""
    made: list[Bench] = []

    def make(url: str, table: str = "t", **settings: Any) -> Bench:
        made.append(Bench(url, table, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def ask(postgres_url: str) -> Iterator[Ask]:
    """The server's own view of the test's database. What is prepared there goes with the test."""
    ask = Ask(postgres_url)
    yield ask
    for gid in ask.gids():
        ask(f"ROLLBACK PREPARED '{gid}'")


@pytest.fixture
def make(postgres_url: str) -> Iterator[MakeWorld]:
    """Pipelines without Spark, into the test's database."""
    with worlds(postgres_url) as make:
        yield make


@pytest.fixture
def txn(postgres_url: str) -> Iterator[Transactions]:
    transactions = Transactions(Operations(postgres_url), None)
    yield transactions
    transactions.close()


@pytest.fixture
def kafka_topic(kafka_server: KafkaServer) -> Callable[..., str]:
    """A factory of fresh topics: `kafka_topic(partitions=4, config={...})` answers with the name."""
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers, "log_level": 0})

    def create(partitions: int = 4, config: dict[str, str] | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([topic])[name].result(30)
        return name

    return create


@pytest.fixture
def hbase_table(hbase_server: HBaseServer) -> Iterator[Callable[..., HBaseTable]]:
    """A factory of fresh tables of one family `f`: `hbase_table(versions_max=2, split_keys=[b"m"])`."""
    settings = HBaseSettings(hbase_server.servers)
    made: list[str] = []

    def create(versions_max: int = 1, ttl_s: int | None = None, split_keys: Sequence[bytes] = ()) -> HBaseTable:
        made.append(f"test_{uuid.uuid4().hex[:12]}")
        tables.create(settings, made[-1], [Family(b"f", versions_max, ttl_s)], split_keys)
        return HBaseTable(settings, made[-1])

    yield create
    for name in made:
        tables.drop(settings, name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Batches are tiny here: they would win back nothing of the time that compiling code for each query takes.
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    session = spark_session("onefold tests", tmp_path_factory.mktemp("spark"), master="local[2]", **interpreted)
    yield session
    session.stop()


@pytest.fixture
def rig(
    spark: SparkSession, kafka_server: KafkaServer, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path
) -> Iterator[Rig]:
    """A fresh topic of four partitions, a fresh database, and an empty directory. Closes what a test leaves open."""
    with closing(Rig(spark, kafka_server.bootstrap_servers, kafka_topic(partitions=4), postgres_url, tmp_path)) as rig:
        yield rig
