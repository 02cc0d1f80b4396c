"""SqlSink when things go wrong around it: limits, locks, rights, servers that die, disks that are full."""

from __future__ import annotations

import resource
import tempfile
import time as clock
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.tables.sql_bench import DELETES, PIPELINE, UPSERT, Make, rows

from onefold.clients.sql.database import Database
from onefold.core import ConfigError, InDoubt, OutOfResources, Retriable, TaskId, WorkLost
from onefold.sinks import SqlSink
from onefold.sinks.staged import ledger_committer as committers

pytestmark = pytest.mark.servers


LIMITS = {
    "mariadb_url": (
        "SET GLOBAL max_statement_time = 0.4, GLOBAL wait_timeout = 1",
        "SET GLOBAL max_statement_time = 0, GLOBAL wait_timeout = 28800",
        ["CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW SET NEW.v = NEW.v + SLEEP(0.6)"],
    ),
    "postgres_url": (
        "ALTER ROLE onefold SET statement_timeout = '400ms'",
        "ALTER ROLE onefold RESET statement_timeout",
        [
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.6); RETURN NEW; END'",
            "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()",
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("server", LIMITS)
def test_limits_that_the_server_has_for_everybody_end_no_task_and_no_merge(
    server: str, bench: Make, request: pytest.FixtureRequest
) -> None:
    limit, unlimit, slow = LIMITS[server]
    url = request.getfixturevalue(server)
    before = bench(url)
    before.open(rows((1, 1, "a")).schema)
    before.do(*slow, limit)
    try:
        b = bench(url)
        b.open(rows((1, 1, "a")).schema)
        record = b.begin()
        writer = b.sink.writer(TaskId(PIPELINE, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4()))
        writer.write(rows((1, 1, "a")))
        clock.sleep(1.2)  # longer than MariaDB's wait_timeout
        committable = writer.prepare()
        assert committable is not None
        b.finish(record, [committable])
        assert b.ask("SELECT id, v FROM t") == [(1, 1)]
    finally:
        before.do(unlimit)


def test_the_limit_of_a_handshake_with_mariadb_is_none_of_a_statement(mariadb_url: str) -> None:
    database = Database(f"{mariadb_url}{'&' if '?' in mariadb_url else '?'}connect_timeout=1", lock_timeout_s=30)
    with database.transaction() as connection:
        assert connection.rows("SELECT SLEEP(1.5)") == [(0,)]
    database.close()


def test_a_full_mariadb_is_waited_for(mariadb_url: str, bench: Make) -> None:
    b = bench(mariadb_url)
    b.epoch(rows((1, 1, "a")))
    b.do(
        "SET SESSION max_heap_table_size = 16384",
        "CREATE TABLE little (text CHAR(200)) ENGINE = MEMORY",
        "CREATE TRIGGER more AFTER INSERT ON t FOR EACH ROW"
        " INSERT INTO little SELECT REPEAT('x', 200) FROM seq_1_to_10000",
    )
    record = b.begin()
    manifest = [b.prepare(record, rows((2, 1, "b")))]
    with raises(OutOfResources, "database-resources-exhausted"):
        b.decide(record, manifest)


@pytest.mark.parametrize("server", ["mariadb_url", "postgres_url"])
def test_a_lock_that_somebody_holds_is_waited_for_and_then_retriable(
    server: str, bench: Make, request: pytest.FixtureRequest
) -> None:
    b = bench(request.getfixturevalue(server), lock_timeout_s=1, **UPSERT)
    b.epoch(rows((1, 1, "a")))
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 2, "b")))]
    with b.engine.begin() as other:
        other.execute(sa.text("UPDATE t SET name = 'mine' WHERE id = 1"))
        with pytest.raises(Retriable, match=r"(?i)lock"):
            b.decide(record, manifest)
    b.finish(record, manifest)
    assert b.ask("SELECT id, v, name FROM t") == [(1, 2, "b")]


IDLE = {
    "mariadb": "SELECT @@idle_transaction_timeout * 1000",
}


@pytest.mark.slow
def test_a_task_may_wait_for_its_rows_and_the_driver_may_not_be_idle_with_locks(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, lock_timeout_s=2)
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    writer = b.sink.writer(TaskId(PIPELINE, 1, record.epoch, record.timestamp_ms, uuid.uuid4()))
    writer.write(rows((1, 1, "a")))
    clock.sleep(3)
    writer.write(rows((2, 1, "b")))
    committable = writer.prepare()
    assert committable is not None
    if not b.is_postgres:  # there, test_postgres_sessions
        with b.committer._database.connected() as connection:  # on the connection that the writer had
            dialect = connection.dialect.name
            assert dialect == "sqlite" or int(connection.scalar(sa.text(IDLE[dialect]))) == 1000
    b.finish(record, [committable])
    assert b.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


def test_a_role_that_may_not_write_the_table_is_told_when_the_sink_opens(
    mariadb_url: str, mariadb_server: Any, bench: Make
) -> None:
    admin, name = bench(mariadb_url), f"u{uuid.uuid4().hex[:8]}"
    database = sa.make_url(mariadb_url).database
    admin.do(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, name TEXT)",
        f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'geheim'",
        f"GRANT CREATE, DROP, INDEX ON {database}.* TO {name}@'127.0.0.1'",
        *(f"GRANT SELECT ON {database}.{t} TO {name}@'127.0.0.1'" for t in ("t",)),
    )
    mine = mariadb_url.replace("onefold@", f"{name}:geheim@")
    admin.sink.open(PIPELINE, rows((1, 1, "a")).schema).close()
    for table in [n for n in sa.inspect(admin.engine).get_table_names() if n.startswith("onefold_")]:
        admin.do(f"GRANT ALL ON {database}.{table} TO {name}@'127.0.0.1'")
    with raises(ConfigError, "database-access-denied") as caught:
        SqlSink(mine, "t").open(PIPELINE, rows((1, 1, "a")).schema)
    assert "geheim" not in str(caught.value)
    with raises(ConfigError, "database-access-denied") as caught:
        SqlSink(mine.replace("geheim", "falsch"), "t").open(PIPELINE, rows((1, 1, "a")).schema)
    assert "falsch" not in str(caught.value)
    assert mariadb_server.status().running


def test_a_table_without_transactions_is_refused(mariadb_url: str, bench: Make) -> None:
    b = bench(mariadb_url)
    b.do("CREATE TABLE t (id BIGINT) ENGINE = MyISAM")
    with raises(ConfigError, "table-without-transactions"):
        b.open(pa.schema({"id": pa.int64()}))


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)  # Postgres merges into some
def test_a_view_is_refused(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.do("CREATE TABLE real_one (id BIGINT)", "CREATE VIEW t AS SELECT * FROM real_one")
    with raises(ConfigError, "target-is-view"):
        b.open(pa.schema({"id": pa.int64()}))


def test_no_other_mariadb_removes_the_temporary_tables_of_this_one(mariadb_url: str, mariadb_server: Any) -> None:
    with sa.create_engine(mariadb_url, poolclass=sa.NullPool).connect() as connection:
        assert connection.scalar(sa.text("SELECT @@tmpdir")) == str(mariadb_server.data)


@pytest.mark.parametrize("moment", ["load", "staged", "merge", "decided"])
def test_a_mariadb_that_dies_in_mid_epoch_loses_and_doubles_nothing(
    mariadb_url: str, mariadb_server: Any, bench: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    b = bench(mariadb_url, **DELETES)
    b.epoch(rows((1, 1, "a", False), (2, 1, "b", False)))
    record, batch = b.begin(), rows((1, 2, "new", False), (2, 2, None, True), (3, 1, "c", False))
    if moment == "load":
        writer = b.sink.writer(TaskId(PIPELINE, 1, record.epoch, record.timestamp_ms, uuid.uuid4()))
        writer.write(batch)
        again(mariadb_server)
        with pytest.raises(Retriable):
            writer.prepare()
    manifest = [b.prepare(record, batch)]
    if moment == "staged":
        again(mariadb_server)
    if moment == "merge":
        with monkeypatch.context() as patch:
            patch.setattr(committers, "failpoint", lambda _name: again(mariadb_server))
            with pytest.raises((Retriable, InDoubt)):
                b.decide(record, manifest)
        assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 1, "a"), (2, 1, "b")]
    if moment == "decided":
        b.decide(record, manifest)
        again(mariadb_server)
    b.finish(record, manifest)
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 2, "new"), (3, 1, "c")]
    assert b.staged() == 0


def again(server: Any) -> None:
    server.kill()
    server.start()


def test_a_postgres_that_emptied_the_stage_is_noticed_before_the_decision(
    postgres_url: str, postgres_server: Any, bench: Make
) -> None:
    b = bench(postgres_url)
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 1, "a")))]
    again(postgres_server)
    b.engine.dispose()
    with pytest.raises(WorkLost):
        b.committer.verify(manifest)
    with raises(WorkLost, "stage-rows-missing"):
        b.decide(record, manifest)
    b.finish(record, [b.prepare(record, rows((1, 1, "a")))])
    assert b.ask("SELECT id FROM t") == [(1,)]


def test_rows_that_find_no_room_to_wait_in_are_told_as_such(tmp_path: Path, bench: Make) -> None:
    b = bench(f"sqlite:///{tmp_path / 'x.db'}")
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, most))  # of any file
    try:
        with raises(OutOfResources, "spool-full", f"{tempfile.gettempdir()}"):
            b.prepare(record, pa.record_batch({"id": [1], "v": [1], "name": ["x" * 1_000_000]}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    b.finish(record, [b.prepare(record, rows((1, 1, "a")))])


def test_a_full_sqlite_file_is_waited_for_and_nothing_is_staged(
    tmp_path: Path, bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench(f"sqlite:///{tmp_path / 'x.db'}")
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    task = TaskId(PIPELINE, 1, record.epoch, record.timestamp_ms, uuid.uuid4())
    writer: Any = b.sink.writer(task)

    begin = writer._database.backend.begin

    def tiny(connection: Any, first: Any) -> Any:
        found = begin(connection, first)
        connection.execute("PRAGMA max_page_count = 1")
        return found

    monkeypatch.setattr(writer._database.backend, "begin", tiny)
    writer.write(pa.record_batch({"id": [1], "v": [1], "name": ["x" * 1_000_000]}))
    with raises(OutOfResources, "database-resources-exhausted"):
        writer.prepare()
    monkeypatch.undo()
    assert b.staged() == 0
    writer._database.close()


def test_a_sqlite_file_that_may_only_be_read_is_told_as_such(tmp_path: Path, bench: Make) -> None:
    bench(f"sqlite:///{tmp_path / 'x.db'}").epoch(rows((1, 1, "a")))
    sink = SqlSink(f"sqlite:///file:{tmp_path / 'x.db'}?mode=ro&uri=true", "t")
    with raises(ConfigError, "database-access-denied"):
        sink.open("another", rows((1, 1, "a")).schema)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE t (id int, ID int)", "SELECT nothing", "CREATE TABLE t (a int, KEY (b))"]
)
def test_what_mariadb_refuses_as_it_is_ends_a_pipeline_and_is_not_waited_for(mariadb_url: str, statement: str) -> None:
    database = Database(mariadb_url, 5)
    with pytest.raises(ConfigError) as refused, database.transaction() as connection:
        connection.rows(statement)
    assert refused.value.code == "database-access-denied"
    assert "password" not in refused.value.message
    database.close()
