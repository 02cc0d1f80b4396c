"""Real servers for the tests, from onefold's own pytest plugin: started once in a process, stopped at its end.

ONEFOLD_SERVERS says what they are: processes of this machine, containers, or servers that variables name; tests that
kill a server then skip (onefold.testing.servers). A test does not know which. `onefold_servers` makes more of them.
Where MariaDB is not installed and can't be fetched either, its tests skip, with the reason.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from harness.calls import Ask
from harness.differential.drawing import PARTITIONS
from harness.differential.shapes import Shape
from harness.differential.trial import MakeTrial, Trial
from harness.flows import Flows
from harness.passwords import let_roles_in, plain_url
from harness.pipeline_drivers import MakeWorld, worlds
from harness.support import Rig
from harness.tables.sql_bench import Bench, Make
from pyspark.sql import SparkSession

from onefold.local import LocalServerError, MariaDbServer
from onefold.local.mariadb.binaries import mariadb_binaries
from onefold.operate.transactions import Transactions
from onefold.sinks.postgres.admin import Operations
from onefold.spark.session import spark_session
from onefold.testing import Servers


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
def postgres_server(postgres: Any) -> Any:
    """The plugin's, into which roles that tests make log in without a password."""
    let_roles_in(postgres)
    return postgres


@pytest.fixture(scope="session")
def kafka_server(kafka: Any) -> Any:
    return kafka


@pytest.fixture(scope="session")
def hbase_server(hbase: Any) -> Any:
    """HBase with its Thrift2 server at `servers`. `thrift1.start()` adds the older interface, happybase's."""
    return hbase


@pytest.fixture(scope="session")
def mariadb_server(onefold_servers: Servers) -> Iterator[Any]:
    try:
        mariadb_binaries()
    except LocalServerError as error:
        pytest.skip(str(error))
    with onefold_servers.running("mariadb") as server:
        yield server
    if isinstance(server, MariaDbServer):
        shutil.rmtree(server.data)  # as root they are outside of pytest's own folder


@pytest.fixture
def mariadb_url(mariadb_server: Any) -> Iterator[str]:
    """An empty database of the test's own."""
    name, engine = f"test_{uuid.uuid4().hex[:12]}", sa.create_engine(mariadb_server.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield mariadb_server.url_of(name)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name}"))
    engine.dispose()


@pytest.fixture
def postgres_url(postgres_server: Any, postgres_url: str) -> str:
    """The plugin's, without the password, so that tests can make others of it."""
    return plain_url(postgres_server, postgres_url.rpartition("/")[2].partition("?")[0])


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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Batches are tiny here: they would win back nothing of the time that compiling code for each query takes.
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    session = spark_session("onefold tests", tmp_path_factory.mktemp("spark"), master="local[2]", **interpreted)
    yield session
    session.stop()


@pytest.fixture
def few_tasks(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture
def rig(
    spark: SparkSession, kafka_server: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path
) -> Iterator[Rig]:
    """A fresh topic of four partitions, a fresh database, and an empty directory. Closes what a test leaves open."""
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    with closing(Rig(spark, kafka_server.bootstrap_servers, kafka_topic(partitions=4), postgres_url, tmp_path)) as rig:
        yield rig
    spark.conf.set("spark.sql.shuffle.partitions", before)  # some tests want few tasks


@pytest.fixture
def flows(kafka_server: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path) -> Iterator[Flows]:
    with closing(Flows(kafka_server.bootstrap_servers, kafka_topic(partitions=4), postgres_url, tmp_path)) as flows:
        yield flows


@pytest.fixture
def trial(kafka_server: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path) -> MakeTrial:
    """A factory of random flows' trials, each with topics, tables and a directory of its own."""
    numbers = count()

    def make(shape: Shape) -> Trial:
        name = f"flow{next(numbers)}"
        topics = tuple(kafka_topic(partitions=PARTITIONS) for _ in range(shape.sources))
        return Trial(shape, name, kafka_server.bootstrap_servers, topics, postgres_url, tmp_path / name)

    return make
