"""What another user of this machine, or a local server's own user, can do to it and to whoever started it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.support import wait_until
from typer.testing import CliRunner

from onefold.local import LocalServerError, MariaDbServer, PostgresServer, SparkCluster
from onefold.local.cli import app
from onefold.local.process import ProcessRef, as_user, kill_tree

pytestmark = [pytest.mark.servers, pytest.mark.only_with_servers("local", reason="it is a test of onefold.local")]
ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
OPEN_TO_ALL = 0o077
NOBODY = (65534, 65534)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def postgres(directory: Path) -> Iterator[PostgresServer]:
    with PostgresServer(directory) as server:
        yield server


def without_password(server: PostgresServer, user: str = "onefold") -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/onefold?passfile=/dev/null"


def asked(server: PostgresServer, statement: str) -> list[Any]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def words_of(directory: Path, option: str) -> list[str]:
    """The passwords in the files of that name."""
    return [line.strip().rpartition(option)[2] for line in directory.read_text().splitlines() if option in line]


@pytest.mark.attack(
    who="another user of the machine",
    does="logs in to a local Postgres, to run programs as its OS user",
    gets="nothing: it asks for a password that only its owner can read",
)
def test_nobody_logs_in_to_postgres_without_its_password(postgres: PostgresServer) -> None:
    for user in ("onefold", "postgres", "root"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(without_password(postgres, user))
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(without_password(postgres, user), password="onefold")
    assert postgres.passfile.stat().st_mode & OPEN_TO_ALL == 0
    assert asked(postgres, "SHOW listen_addresses") == [("127.0.0.1",)]
    assert asked(postgres, "SHOW unix_socket_directories") == [("",)]
    assert asked(postgres, "SELECT DISTINCT auth_method FROM pg_hba_file_rules") == [("scram-sha-256",)]


@ROOT_ALONE
@pytest.mark.attack(
    who="another user of the machine",
    does="reads the files beside a local server's data",
    gets="no password",
)
def test_nobody_reads_the_password(postgres: PostgresServer) -> None:
    read = subprocess.run(
        ["/bin/sh", "-c", "cat passfile data/PG_VERSION"],
        cwd=postgres.home,
        capture_output=True,
        check=False,
        **as_user("nobody"),
    )
    assert (read.stdout, read.stderr.count(b"Permission denied")) == (b"", 2)


@pytest.mark.attack(
    who="another user of the machine",
    does="looks into process lists, state files, logs and what commands print",
    gets="no password",
)
def test_no_password_shows(postgres: PostgresServer) -> None:
    (word,) = words_of(postgres.passfile, ":")
    answer = CliRunner().invoke(app, ["up", "postgres", "--dir", str(postgres.directory)])
    assert "which only you can read" in answer.output
    assert postgres.url in answer.output
    with psycopg.connect(postgres.url) as connection:
        assert connection.info.password == word, "it is this one"
    told = [answer.output, postgres.url, repr(postgres), repr(postgres.status()), repr(os.environ)]
    told += [path.read_text() for path in postgres.directory.glob("*.json")]
    told += [path.read_text() for path in (postgres.directory / "logs").iterdir()]
    told += [repr((p.info["cmdline"], p.info["environ"])) for p in psutil.process_iter(["cmdline", "environ"])]
    assert not [text for text in told if word in text]


@pytest.mark.attack(
    who="another user of the machine",
    does="logs in to a local MariaDB",
    gets="nothing: it asks for a password that only its owner can read",
)
def test_nobody_logs_in_to_mariadb_without_its_password(mariadb_server: MariaDbServer) -> None:
    for user in ("onefold", "root", "mysql", "mariadb.sys", ""):
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user=user)
    assert mariadb_server.option_file.stat().st_mode & OPEN_TO_ALL == 0
    engine = sa.create_engine(mariadb_server.url)
    with engine.connect() as connection:
        users = connection.execute(sa.text("SELECT user FROM mysql.user WHERE authentication_string = ''")).all()
        assert [user for (user,) in users if user != "mariadb.sys"] == [], "which is locked"
    engine.dispose()
    (word,) = words_of(mariadb_server.option_file, "password=")
    assert word not in mariadb_server.url + repr(mariadb_server.status())
    assert not [p for p in psutil.process_iter(["cmdline"]) if word in repr(p.info["cmdline"])]


@pytest.mark.slow
@ROOT_ALONE
@pytest.mark.attack(
    who="a local server's own OS user",
    does="puts links to files of root's among the data, and waits for the next start",
    gets="nothing written: root writes no file there",
)
def test_root_writes_through_no_link_among_the_data(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path)
    with server:
        data = server.home / "data"
        user = data.owner()
    kept = tmp_path / "roots"
    kept.write_text("as it was")
    kept.chmod(0o600)
    before = {name: (data / name).read_bytes() for name in ("postgresql.conf", "pg_hba.conf")}
    names = ["onefold.conf", "postmaster.pid", "passfile"]
    for name in names:
        (data / name).unlink(missing_ok=True)
        subprocess.run(["ln", "-s", str(kept), name], cwd=data, check=True, **as_user(user))
    with server:
        assert asked(server, "SELECT 1") == [(1,)]
    found = kept.stat()
    assert (kept.read_text(), found.st_mode & 0o777, found.st_uid) == ("as it was", 0o600, 0)
    assert {name: (data / name).read_bytes() for name in before} == before


@ROOT_ALONE
@pytest.mark.attack(
    who="whoever took over a local server",
    does="reads what the OS user of another service owns",
    gets="nothing: the server's user owns local servers' data alone",
)
def test_the_servers_user_is_no_other_services(postgres: PostgresServer, mariadb_server: MariaDbServer) -> None:
    for server in (postgres, mariadb_server):
        pid = server.status().pid
        assert pid is not None
        assert psutil.Process(pid).username() == "onefold-local"


@ROOT_ALONE
def test_data_of_another_user_are_refused_and_a_server_of_root_starts_elsewhere(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "postgres" / "data"
    theirs.mkdir(parents=True)
    (theirs / "PG_VERSION").write_text("18")
    (theirs.parent / "passfile").write_text("x")
    os.chown(theirs, 12345, 12345)
    with raises(LocalServerError, "data-of-another-user"):
        PostgresServer(tmp_path / "theirs").start()
    with PostgresServer(tmp_path / "another") as server:
        assert asked(server, "SELECT 1") == [(1,)]


@pytest.mark.slow
def test_data_without_a_password_are_refused_and_made_anew_once_they_are_gone(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path)
    with server:
        asked(server, "CREATE TABLE t AS SELECT 7 AS n")
    server.passfile.unlink()
    with pytest.raises(LocalServerError, match=r"is lost. Remove \S+/data to have it made anew"):
        server.start()
    subprocess.run(["rm", "-rf", server.home / "data"], check=True)
    with server:
        assert asked(server, "SELECT to_regclass('t')") == [(None,)]


PROGRAM = """
import sys
from pathlib import Path
from onefold.spark.session import spark_session
spark = spark_session("evil", Path(sys.argv[2]), sys.argv[1], show_retries=True)
print(spark.range(10).count())
"""


@ROOT_ALONE
@pytest.mark.attack(
    who="another user of the machine",
    does="names a process of somebody else's in the state file of a folder that both may write to, where `onefold local"
    " down` or `make clean` is called",
    gets="a refusal (`file-not-trusted`): no process is ended, and no server is started there",
)
def test_a_state_file_of_another_users_ends_no_process() -> None:
    shared = Path(tempfile.mkdtemp(prefix="onefold-attack-"))
    victim = subprocess.Popen(["sleep", "60"])
    try:
        shared.chmod(0o777)
        state = shared / "kafka.json"
        born = (ProcessRef.of(victim.pid) or ProcessRef(0, "")).born
        state.write_text(
            json.dumps({"port": 1, "log": "x", "process": dataclasses.asdict(ProcessRef(victim.pid, born))})
        )
        os.chown(state, *NOBODY)
        for command in (["down", "kafka"], ["status", "kafka"], ["up", "kafka"]):
            answer = CliRunner().invoke(app, [*command, "--dir", str(shared)])
            assert answer.exit_code != 0 and "file-not-trusted" in answer.output, answer.output
        state.unlink()
        os.chown(shared, *NOBODY)
        answer = CliRunner().invoke(app, ["up", "kafka", "--dir", str(shared)])
        assert answer.exit_code != 0 and "file-not-trusted" in answer.output, answer.output
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
        shutil.rmtree(shared)


@pytest.mark.slow
@pytest.mark.attack(
    who="another user of the machine",
    does="gives a local Spark master a program to run",
    gets="nothing: it asks for a secret that only its owner can read",
)
def test_nobody_runs_a_program_on_a_spark_cluster_without_its_secret(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path / "servers", workers=0)
    with cluster:
        assert (Path(cluster.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf").stat().st_mode & OPEN_TO_ALL == 0
        command = [sys.executable, "-c", PROGRAM, cluster.url, str(tmp_path / "spark")]
        stranger = subprocess.Popen(command, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
        try:
            log = cluster.directory / "logs" / "spark-master.log"
            wait_until(lambda: "Expected SaslMessage" in log.read_text(), "the stranger's coming")
            assert "Registering app" not in log.read_text()
        finally:
            kill_tree(ProcessRef.of(stranger.pid) or pytest.fail("it has ended"))
            stranger.wait()
