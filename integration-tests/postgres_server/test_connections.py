"""Who connects, and how long anybody waits: passwords, roles and time limits (docs/postgres-connections.md)."""

from __future__ import annotations

import logging
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.field import QUICK, frozen, held, with_parameters
from harness.passwords import at, password_of
from harness.pipeline_drivers import Epochs, Line, assert_exact, at_failpoint, later
from harness.support import wait_until

from onefold.clients.postgres import sessions as pool
from onefold.core import ConfigError, Retriable, TaskId
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore
from onefold.testing import Servers

pytestmark = pytest.mark.servers
SECRET, NEW_SECRET = "s3cret#1", "n3w#2"
DELIVERIES = ["two_phase", "staged"]
COPYING = "SELECT pid FROM pg_stat_activity WHERE query ~ '^COPY' AND state = 'active' AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def server(onefold_servers: Servers) -> Iterator[Any]:
    """Lets in whoever has a password."""
    settings = {"max_prepared_transactions": "16", **QUICK}
    with onefold_servers.postgres(settings=settings) as server:
        yield server


@pytest.fixture
def url(server: Any) -> Iterator[str]:
    """A database of the test's own, as its superuser."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    sql(server.url, f"CREATE DATABASE {name}")
    here = f"postgresql://onefold:{password_of(server)}@{':'.join(at(server))}/{name}"
    yield here
    for (gid,) in sql(here, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        sql(here, f"ROLLBACK PREPARED '{gid}'")
    sql(server.url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def make_role(url: str) -> Iterator[Callable[..., str]]:
    """A factory of roles that may create things in the test's database and log in with SECRET."""
    made: list[str] = []

    def make(options: str = f"LOGIN PASSWORD '{SECRET}'") -> str:
        made.append(f"role_{uuid.uuid4().hex[:8]}")
        sql(url, f"CREATE ROLE {made[-1]} {options}")
        sql(url, f"GRANT CREATE ON DATABASE {url.rpartition('/')[2]} TO {made[-1]}")
        sql(url, f"GRANT CREATE ON SCHEMA public TO {made[-1]}")
        return made[-1]

    yield make
    for (gid,) in sql(url, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        sql(url, f"ROLLBACK PREPARED '{gid}'")
    for role in made:
        sql(url, f"DROP OWNED BY {role} CASCADE")
        sql(url, f"DROP ROLE {role}")


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


# passwords


def _in_the_url(_folder: Path, _patch: pytest.MonkeyPatch, parameters: dict[str, str]) -> dict[str, str]:
    return {**parameters, "password": SECRET}


def _in_a_passfile(folder: Path, _patch: pytest.MonkeyPatch, parameters: dict[str, str]) -> dict[str, str]:
    return {**parameters, "passfile": _passfile(folder / "passwords", SECRET)}


def without_password(url: str) -> dict[str, str]:
    parameters = psycopg.conninfo.conninfo_to_dict(url)
    return {key: str(value) for key, value in parameters.items() if key != "password"}


def _in_pgpassfile(folder: Path, patch: pytest.MonkeyPatch, parameters: dict[str, str]) -> dict[str, str]:
    patch.setenv("PGPASSFILE", _passfile(folder / "passwords", SECRET))
    return parameters


def _in_the_home_folder(folder: Path, patch: pytest.MonkeyPatch, parameters: dict[str, str]) -> dict[str, str]:
    _passfile(folder / ".pgpass", SECRET)
    patch.delenv("PGPASSFILE")
    patch.setenv("HOME", str(folder))
    return parameters


def _in_pgpassword(_folder: Path, patch: pytest.MonkeyPatch, parameters: dict[str, str]) -> dict[str, str]:
    patch.setenv("PGPASSWORD", SECRET)
    return parameters


def _in_a_service_file(folder: Path, patch: pytest.MonkeyPatch, parameters: dict[str, str]) -> dict[str, str]:
    lines = [f"{key}={value}\n" for key, value in {**parameters, "password": SECRET}.items()]
    (folder / "services").write_text("[shop]\n" + "".join(lines))
    patch.setenv("PGSERVICEFILE", str(folder / "services"))
    return {"service": "shop"}


def _passfile(path: Path, password: str) -> str:
    path.write_text(f"*:*:*:*:{password}\n")
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    "place",
    [_in_the_url, _in_a_passfile, _in_pgpassfile, _in_the_home_folder, _in_pgpassword, _in_a_service_file],
)
def test_sink_and_store_take_the_password_from_wherever_libpq_does(
    url: str,
    make_role: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: Callable[..., dict[str, str]],
) -> None:
    caplog.set_level(logging.DEBUG)
    given = place(tmp_path, monkeypatch, {**without_password(url), "user": make_role()})
    line = Line(psycopg.conninfo.make_conninfo(**given)).start()
    line.to(10)
    assert_exact(url, 10)
    record = line.store.history("t")[-1]
    seen = [repr(line.sink), str(line.store.database), repr(line.driver), pickle.dumps(record).decode("latin1")]
    assert all(SECRET not in text for text in [*seen, caplog.text])
    # The sink as it travels to the executors holds what the URL holds, and nothing that libpq looks up.
    assert (SECRET.encode() in pickle.dumps(line.sink)) == ("password" in given)
    line.close()


def test_a_password_that_changes_in_the_passfile_is_taken_from_there(
    url: str, make_role: Callable[..., str], tmp_path: Path
) -> None:
    role = make_role()
    passfile = _passfile(tmp_path / "passwords", SECRET)
    line = Line(psycopg.conninfo.make_conninfo(**{**without_password(url), "user": role, "passfile": passfile})).start()
    line.to(10)
    sql(url, f"ALTER ROLE {role} PASSWORD '{NEW_SECRET}'")
    line.to(20)  # over sessions that are open
    end_sessions(url, role)
    with raises(ConfigError, "postgres-connection-refused", f"{passfile}") as caught:
        line.sink.recover("t")
    assert SECRET not in str(caught.value)
    _passfile(tmp_path / "passwords", NEW_SECRET)
    line.to(30)
    line.close()
    assert_exact(url, 30)


def test_a_password_that_changes_under_a_url_stops_the_pipeline_and_loses_nothing(
    url: str, make_role: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    role = make_role()
    line = Line(with_parameters(url, user=role, password=SECRET)).start()
    line.to(10)

    def rotate() -> None:
        sql(url, f"ALTER ROLE {role} PASSWORD '{NEW_SECRET}'")
        end_sessions(url, role)

    at_failpoint(monkeypatch, "after:Decide", rotate)
    with raises(ConfigError, "postgres-connection-refused") as caught:
        line.to(20)
    assert SECRET not in str(caught.value)
    line.close()
    with raises(ConfigError, "postgres-connection-refused"):
        CheckpointStore(line.sink.store_url() or "").id()
    line = Line(with_parameters(url, user=role, password=NEW_SECRET)).start(from_ledger=True)
    assert line.at == 20
    line.to(30)
    line.close()
    assert_exact(url, 30)


def end_sessions(url: str, role: str) -> None:
    sql(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
    wait_until(lambda: not sql(url, f"SELECT pid FROM pg_stat_activity WHERE usename = '{role}'"), "ending sessions")


# roles


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_work_under_a_role_belongs_to_it_whoever_logs_in(
    url: str, make_role: Callable[..., str], monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    owner = make_role("NOLOGIN")
    logins = [make_role(), make_role()]
    owners = []
    for number, login in enumerate(logins):
        sql(url, f"GRANT {owner} TO {login}; REVOKE CREATE ON SCHEMA public FROM {', '.join(logins)}")
        line = Line(with_parameters(url, user=login, password=SECRET), delivery=delivery, role=owner)
        line.start(from_ledger=number > 0)
        at_failpoint(
            monkeypatch, "before:Decide", lambda: owners.extend(sql(url, "SELECT owner FROM pg_prepared_xacts"))
        )
        line.to(number * 10 + 10)
        line.close()
    assert_exact(url, 20)
    assert owners == [(owner,)] * (4 if delivery == "two_phase" else 0)
    tables = sql(url, "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relname ~ '^(onefold|t$)'")
    assert tables == [(owner,)]


def test_a_role_that_cannot_be_taken_is_a_setting_to_mend(url: str, make_role: Callable[..., str]) -> None:
    login, other = make_role(), make_role("NOLOGIN")
    as_login = with_parameters(url, user=login, password=SECRET)
    with raises(ConfigError, "postgres-connection-refused"):
        PostgresSink(as_login, "t", role=other).recover("p")
    with raises(ConfigError, "postgres-connection-refused", '"nobody x"'):
        PostgresSink(as_login, "t", role="nobody x").recover("p")


def test_a_member_finishes_the_owners_prepared_work_and_is_itself_again(
    url: str, make_role: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, member, stranger = make_role(), make_role(), make_role()
    sql(url, f"REVOKE CREATE ON SCHEMA public FROM {member}, {stranger}")
    line = Line(with_parameters(url, user=owner, password=SECRET)).start()
    line.to(10)

    class Killed(Exception):
        pass

    def die() -> None:
        raise Killed

    at_failpoint(monkeypatch, "after:Decide", die)
    with pytest.raises(Killed):
        line.to(20)
    line.close()
    assert len(sql(url, "SELECT gid FROM pg_prepared_xacts")) == 2
    for role in (member, stranger):
        for schema in ("public", "onefold_sinks"):
            sql(url, f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    sql(url, f"GRANT {owner} TO {member}")
    with raises(ConfigError, "schema-of-another-role", f"{owner}", f"{owner}", f"{stranger}"):
        Line(with_parameters(url, user=stranger, password=SECRET))
    line = Line(with_parameters(url, user=member, password=SECRET)).start(from_ledger=True)
    assert line.at == 20
    seen = []
    at_failpoint(monkeypatch, "before:Decide", lambda: seen.extend(sql(url, "SELECT owner FROM pg_prepared_xacts")))
    line.to(30)
    line.close()
    assert seen == [(member,)] * 2
    assert_exact(url, 30)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_texts_come_whole_whatever_encoding_the_url_names(url: str, delivery: str) -> None:
    sink = PostgresSink(with_parameters(url, client_encoding="latin1"), "t", delivery=delivery)
    batch = pa.record_batch({"name": ["é"]})
    with Epochs(sink, batch.schema) as life:
        life.run(batch)
    assert sql(url, "SELECT name FROM t") == [("é",)]


# time


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_time_limits_of_the_role_end_no_copy_and_no_merge(
    url: str, make_role: Callable[..., str], delivery: str
) -> None:
    role = make_role()
    line = Line(with_parameters(url, user=role, password=SECRET), delivery=delivery).start()
    line.to(10)
    line.close()
    sleep = "BEGIN IF i % 10 = 0 THEN PERFORM pg_sleep(0.7); END IF; RETURN true; END"
    sql(url, f"CREATE FUNCTION slow(i bigint) RETURNS boolean LANGUAGE plpgsql AS '{sleep}'")
    sql(url, "ALTER TABLE t ADD CHECK (slow(id))")
    for limit in ("statement_timeout", "transaction_timeout", "idle_session_timeout"):
        if sql(url, f"SELECT current_setting('{limit}', true)") != [(None,)]:
            sql(url, f"ALTER ROLE {role} SET {limit} = '1s'")
    login = with_parameters(url, user=role, password=SECRET)
    line = Line(login, delivery=delivery)
    line.start(from_ledger=True)
    time.sleep(1.1)  # and the idle sessions are gone
    line.to(20)
    line.close()
    assert_exact(url, 20)


def test_a_statement_timeout_in_the_url_is_the_users_wish(url: str) -> None:
    wished = pool.conninfo(with_parameters(url, options="-c statement_timeout=300ms"), "p", 5)

    def sleep() -> None:
        with pool.borrow(wished, "test") as session:
            session.begin(5)
            session.execute("SELECT pg_sleep(5)")

    with raises(Retriable, "postgres-unavailable"):
        sleep()


def test_a_server_that_is_stopped_does_not_keep_a_connect_waiting(server: Any, url: str) -> None:
    with held(server):
        began_s = time.monotonic()
        with raises(Retriable, "postgres-unreachable"):
            PostgresSink(url, "t", connect_timeout_s=2).recover("p")
        assert time.monotonic() - began_s < 10


def test_a_backend_that_hangs_in_the_middle_of_an_epoch_is_waited_for(
    server: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends that wait but the backend's own going on or end: its locks would keep out whoever came instead."""
    line = Line(url).start()
    line.to(10)
    (pid,) = sql(url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'onefold t'")[0]
    going_on = threading.Event()

    def hang() -> None:
        held = frozen(server, pid)
        held.__enter__()

        def release() -> None:
            going_on.set()
            held.__exit__(None, None, None)

        timers.append(later(1.0, release))

    timers: list[threading.Timer] = []
    at_failpoint(monkeypatch, "after:Decide", hang)
    line.to(20)
    assert going_on.is_set(), "the epoch cannot have been committed before"
    timers[0].join()
    line.close()
    assert_exact(url, 20)


@pytest.mark.slow
def test_a_stalled_copy_outlives_its_limits_and_ends_with_its_session(url: str) -> None:
    """Neither a time limit nor pg_cancel_backend reaches it; pg_terminate_backend does."""
    line = Line(with_parameters(url, options="-c statement_timeout=2s -c idle_in_transaction_session_timeout=2s"))
    line.start()
    writer = line.sink.writer(TaskId("t", 1, 1, 1, uuid.uuid4()))
    writer.write(pa.record_batch({"id": pa.array(range(200_000), pa.int64())}))
    time.sleep(2.6)
    ((pid,),) = sql(url, COPYING)
    assert sql(url, f"SELECT pg_cancel_backend({pid})") == [(True,)]
    time.sleep(0.3)
    assert sql(url, COPYING) == [(pid,)]
    assert sql(url, f"SELECT pg_terminate_backend({pid}, 5000)") == [(True,)]
    with pytest.raises(Retriable):
        writer.prepare()
    line.to(10)
    line.close()
    assert_exact(url, 10)


@pytest.mark.slow
@pytest.mark.only_with_servers("containers", reason="cuts the network")
def test_a_copy_whose_client_gave_it_up_behind_a_cut_ends_on_the_server_too(server: Any, url: str) -> None:
    """The client's end of the connection is gone, and nobody could tell the server."""
    line = Line(with_parameters(url, tcp_user_timeout="1000")).start()
    writer = line.sink.writer(TaskId("t", 1, 1, 1, uuid.uuid4()))
    writer.write(pa.record_batch({"id": pa.array(range(200_000), pa.int64())}))
    with server.cut(peer=server.network.gateway), pytest.raises(Retriable, match="timed out"):
        writer.prepare()
    assert len(sql(url, COPYING)) == 1
    wait_until(lambda: sql(url, COPYING) == [], "the COPY's end")
    line.to(10)
    line.close()
    assert_exact(url, 10)
