"""docs/testing.md: its examples run in a suite of somebody else's, and servers in containers do what its table says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from onefold.testing import ContainerError, KafkaContainer, Network, PostgresContainer, ServerKind, server_kind

pytestmark = [pytest.mark.servers, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
in_containers = pytest.mark.only_with_servers("containers", reason="it is of containers")


def pytest_in(folder: Path, *files: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The suite of somebody else's in that folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_pages_examples_pass_in_a_suite_that_only_has_onefold_installed(tmp_path: Path) -> None:
    for name in ("totals.py", "test_totals.py", "test_totals_rows.py", "notes_sink.py", "test_notes_sink.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    ran = pytest_in(tmp_path, "test_totals.py", "test_totals_rows.py", "test_notes_sink.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = "6 passed" if server_kind() is ServerKind.CONTAINERS else "5 passed, 1 skipped"
    assert f"{passed} in " in ran.stdout, "and no package warns in it"


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@in_containers
def test_a_container_is_killed_paused_restarted_and_cut_off_and_comes_back_with_its_data_at_its_address() -> None:
    with Network() as network, PostgresContainer(network) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        address, pid = server.address, server.pid
        for strike in (server.kill, server.stop):
            strike()
            assert not answers(server.url) and not server.status().running
            server.start()
            assert server.address == address and server.pid != pid
        server.pause()
        assert not answers(server.url) and server.status().detail == "paused"
        server.resume()
        for direction in ("both", "incoming", "outgoing"):
            with server.cut(network.gateway, direction):
                assert not answers(server.url), direction
            assert answers(server.url), direction
        with server.cut("192.0.2.1"):  # somebody else
            assert answers(server.url)
        server.cut()
        assert not answers(server.url)
        server.restart()  # its cuts are left behind
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


@in_containers
def test_two_servers_that_are_cut_from_each_other_are_still_reached_by_others() -> None:
    with Network() as network, PostgresContainer(network) as one, PostgresContainer(network) as other:

        def sees_the_other() -> bool:
            try:
                one.execute("timeout", "2", "bash", "-c", f"</dev/tcp/{other.address}/5432")
            except ContainerError:
                return False
            return True

        assert sees_the_other()
        with one.cut(other):
            assert not sees_the_other() and answers(one.url) and answers(other.url)
        assert sees_the_other()


@in_containers
def test_a_standby_follows_until_it_is_promoted() -> None:
    with Network() as network, PostgresContainer(network) as primary, PostgresContainer(primary=primary) as standby:
        with psycopg.connect(standby.url) as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(True,)]
        primary.kill()
        standby.promote()
        with psycopg.connect(standby.url) as connection:
            connection.execute("CREATE TABLE t (id int)")


@in_containers
def test_a_container_that_ends_while_it_starts_shows_the_end_of_its_log() -> None:
    with Network() as network, pytest.raises(ContainerError) as caught:
        PostgresContainer(network, settings={"no_such_setting": "1"}).start()
    assert caught.value.code == "container-ended"
    assert 'unrecognized configuration parameter "no_such_setting"' in str(caught.value)


@in_containers
def test_a_missing_image_and_a_taken_subnet_are_named() -> None:
    class Newer(PostgresContainer):
        image = "no-such-server"

    with Network() as network:
        with pytest.raises(ContainerError, match=r"onefold/no-such-server:.* is not here: build it with `make images`"):
            Newer(network).start()
        with pytest.raises(ContainerError) as caught:
            Network(str(network.subnet)).start()
        assert caught.value.code == "subnet-taken"


@in_containers
def test_published_ports_serve_where_containers_are_not_reached_by_their_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from testcontainers.core.config import ConnectionMode, testcontainers_config

    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    with Network() as network, PostgresContainer(network) as postgres, KafkaContainer(network) as kafka:
        assert not network.direct and postgres.address not in postgres.url
        assert answers(postgres.url)
        postgres.kill()
        postgres.start()
        assert answers(postgres.url)
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        (broker,) = AdminClient(settings).list_topics(timeout=10).brokers.values()
        assert f"{broker.host}:{broker.port}" == kafka.bootstrap_servers


@in_containers
def test_what_a_killed_process_left_is_removed_by_the_next_one() -> None:
    start = (
        "from onefold.testing import Network, PostgresContainer; server = PostgresContainer(Network()); server.start()"
    )
    code = f"{start}; import os; print(server.network.name, flush=True); os.kill(os.getpid(), 9)"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False).stdout
    client = docker.from_env()
    try:
        assert client.networks.list(names=[name.strip()])
        subprocess.run(
            [sys.executable, "-c", "from onefold.testing.containers.engine import engine; engine()"],
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert not client.networks.list(names=[name.strip()])
    finally:
        client.close()


STRIKES = """
import psycopg
import pytest

@pytest.mark.parametrize("how", ["pause", "kill"])
def test_it_fails_in_the_middle_of_a_strike(how, postgres, postgres_url):
    getattr(postgres, how)()
    raise AssertionError

@pytest.mark.only_with_servers("containers", reason="cuts the network")
def test_it_fails_in_the_middle_of_a_cut(postgres, postgres_url):
    postgres.cut()
    raise AssertionError

def test_the_server_is_up(postgres_url):
    psycopg.connect(postgres_url, connect_timeout=3).close()
"""


def test_what_a_test_that_failed_has_struck_is_brought_back_and_no_registrys_prefix_is_taken(tmp_path: Path) -> None:
    (tmp_path / "test_strikes.py").write_text(STRIKES)
    ran = pytest_in(tmp_path, "test_strikes.py", TESTCONTAINERS_HUB_IMAGE_NAME_PREFIX="registry.invalid/")
    outcomes = "3 failed, 1 passed" if server_kind() is ServerKind.CONTAINERS else "2 failed, 1 passed, 1 skipped"
    assert outcomes in ran.stdout, ran.stdout + ran.stderr


ELSEWHERE = """
from pathlib import Path
import psycopg

def test_a_topic_and_a_database_with_something_prepared_in_it(kafka_topic, postgres_url):
    Path("names").write_text(f"{kafka_topic(partitions=1)} {postgres_url.rpartition('/')[2].partition('?')[0]}")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'o''clock'")

def test_a_strike(postgres):
    postgres.pause()

def test_a_server_that_nobody_named(hbase_table):
    hbase_table()
"""


def test_on_servers_of_somebody_else_nothing_is_left_and_nothing_is_struck(
    kafka: Any, postgres: Any, tmp_path: Path
) -> None:
    (tmp_path / "test_elsewhere.py").write_text(ELSEWHERE)
    named = {"ONEFOLD_KAFKA": kafka.bootstrap_servers, "ONEFOLD_POSTGRES": postgres.url, "ONEFOLD_HBASE": ""}
    ran = pytest_in(tmp_path, "test_elsewhere.py", ONEFOLD_SERVERS="external", **named)
    assert "1 passed, 2 skipped" in ran.stdout, ran.stdout + ran.stderr
    topic, database = (tmp_path / "names").read_text().split()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    assert topic not in admin.list_topics(timeout=10).topics
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchall() == []
        left = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (database,)).fetchall()
        assert left == []


JOB = """
import sys
from pathlib import Path
from onefold.spark.session import spark_session
settings = {"spark.cores.max": "2", "spark.executor.memory": "512m"}
spark = spark_session("test", Path(sys.argv[2]), sys.argv[1], **settings)
print(spark.range(1000).mapInArrow(lambda batches: batches, "id long").count())
spark.stop()
"""


def test_a_spark_cluster_that_was_killed_comes_back_and_runs_a_job(spark_cluster: Any, tmp_path: Path) -> None:
    spark_cluster.kill()
    assert not spark_cluster.status().running
    spark_cluster.start()
    command = [sys.executable, "-c", JOB, spark_cluster.url, str(tmp_path / "spark")]
    environment = {**os.environ, **spark_cluster.environment}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.stdout.strip() == "1000", ran.stderr
