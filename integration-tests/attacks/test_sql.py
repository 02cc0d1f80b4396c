"""SqlSink and checkpoint stores on MariaDB and SQLite, beside users of the same server or machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.tables.sql_bench import Bench, Make, rows

from onefold.core import ConfigError, OnefoldError
from onefold.sinks import SqlSink
from onefold.sinks.sql.databases import adapter_of
from onefold.sinks.sql.naming import exactly
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers


@dataclass
class Tenant:
    """A user of the same MariaDB with a database of its own."""

    engine: sa.Engine
    owner: sa.Engine  # who may do everything
    database: str  # the pipeline's

    def do(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement.format(p=self.database))

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query.format(p=self.database))]

    def gets(self, *rights: str) -> None:
        with self.owner.begin() as connection:
            connection.exec_driver_sql(f"GRANT {', '.join(rights)} ON {self.database}.* TO tenant@'127.0.0.1'")


@pytest.fixture
def tenant(mariadb_url: str) -> Iterator[Tenant]:
    url = sa.make_url(mariadb_url)
    owner = sa.create_engine(mariadb_url, poolclass=sa.NullPool)
    its = url.set(username="tenant", password="its", database="tenant")
    setup = (
        "CREATE DATABASE tenant",
        "CREATE USER tenant@'127.0.0.1' IDENTIFIED BY 'its'",
        "GRANT ALL ON tenant.* TO tenant@'127.0.0.1'",
    )
    with owner.begin() as connection:
        for statement in setup:
            connection.exec_driver_sql(statement)
    engine = sa.create_engine(its, poolclass=sa.NullPool)
    yield Tenant(engine, owner, str(url.database))
    with owner.begin() as connection:
        connection.exec_driver_sql("DROP DATABASE tenant")
        connection.exec_driver_sql("DROP USER tenant@'127.0.0.1'")
    owner.dispose()


@pytest.mark.attack(
    who="a MariaDB user with no right on the pipeline's database",
    does="holds the lock by name under which tables are made (GET_LOCK)",
    gets="nothing: that is a row's lock",
)
def test_a_lock_that_everybody_can_hold_stops_no_start(mariadb_url: str, tenant: Tenant, bench: Make) -> None:
    with tenant.engine.connect() as connection:
        held = connection.exec_driver_sql(f"SELECT GET_LOCK('onefold {tenant.database}', 0)").scalar()
        assert held == 1
        b = bench(mariadb_url, lock_timeout_s=2)
        b.epoch(rows((1, 1, "a")))
    assert b.ask("SELECT id FROM t") == [(1,)]


@pytest.mark.attack(
    who="a MariaDB user who may create views in the pipeline's database",
    does="makes a view in place of the checkpoint store, which runs a function as whoever reads it",
    gets="a start that is refused before anything is read",
)
def test_a_view_in_place_of_the_store_runs_no_code_as_the_pipelines_user(
    mariadb_url: str, tenant: Tenant, bench: Make
) -> None:
    tenant.gets("CREATE VIEW")
    tenant.do(
        "CREATE TABLE seen (who TEXT)",
        "CREATE FUNCTION f() RETURNS INT SQL SECURITY INVOKER MODIFIES SQL DATA"
        " BEGIN INSERT INTO tenant.seen VALUES (CURRENT_USER()); RETURN 7; END",
        "CREATE SQL SECURITY INVOKER VIEW {p}.onefold_store AS SELECT 'x' AS store_id, tenant.f() AS version",
    )
    store = CheckpointStore(mariadb_url, lock_timeout_s=2)
    with raises(ConfigError, "own-table-foreign"):
        store.id()
    with raises(ConfigError, "own-table-foreign"):
        store.look()
    store.close()
    assert tenant.ask("SELECT who FROM seen") == []
    with tenant.owner.begin() as connection:  # as the error says
        connection.exec_driver_sql(f"DROP VIEW {tenant.database}.onefold_store")
        connection.exec_driver_sql(f"REVOKE CREATE VIEW ON {tenant.database}.* FROM tenant@'127.0.0.1'")
    b = bench(mariadb_url)
    b.epoch(rows((1, 1, "a")))
    assert b.ask("SELECT id, v, name FROM t") == [(1, 1, "a")]
    assert tenant.ask("SELECT who FROM seen") == []


SQUATS = {
    "engine": ("CREATE TABLE {p}.onefold_sql_ledger (pipeline VARCHAR(200) PRIMARY KEY) ENGINE = MyISAM", "MyISAM"),
    "trigger": (
        "CREATE TRIGGER {p}.forge BEFORE UPDATE ON {p}.onefold_epochs FOR EACH ROW SET NEW.rows = 0",
        "a table with the trigger forge",
    ),
}


@pytest.mark.parametrize("squat", SQUATS)
@pytest.mark.attack(
    who="a MariaDB user who may create tables and triggers in the pipeline's database",
    does="puts a table without transactions, or a trigger, where onefold keeps its books",
    gets="a start that is refused",
)
def test_books_that_somebody_else_has_laid_out_are_refused(
    mariadb_url: str, tenant: Tenant, bench: Make, squat: str
) -> None:
    statement, says = SQUATS[squat]
    tenant.gets("CREATE", "TRIGGER", "DROP")
    if squat == "trigger":
        bench(mariadb_url).epoch(rows((1, 1, "a")))
    tenant.do(statement)
    sink = SqlSink(mariadb_url, "t")
    with raises(ConfigError, "own-table-foreign", f"{says}"):
        sink.recover("p")


LENIENT = ("ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "", "PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH,ORACLE")
EVIL = ["a'b", 'a"b', "a\\", "\\'), (9, 9, 'x'); -- ", "');--", "%s", "\0", "x'41'", "a "]


@pytest.mark.parametrize("mode", LENIENT)
@pytest.mark.attack(
    who="who writes records",
    does="puts quotes and backslashes into them, on a MariaDB of another sql_mode",
    gets="those values, exactly",
)
def test_values_are_exact_whatever_sql_mode_the_server_gives_everybody(
    mariadb_url: str, bench: Make, mode: str
) -> None:
    admin = Bench(mariadb_url, "admin")
    before = admin.ask("SELECT @@GLOBAL.sql_mode")[0][0]
    admin.do(f"SET GLOBAL sql_mode = '{mode}'")
    try:
        b = bench(mariadb_url)
        b.epoch(rows(*((number, 1, value) for number, value in enumerate(EVIL))))
        assert b.ask("SELECT id, name FROM t ORDER BY id") == list(enumerate(EVIL))
        b.do("CREATE TABLE short (name VARCHAR(3))")
        short = bench(mariadb_url, "short")
        with pytest.raises(OnefoldError):
            short.epoch(pa.record_batch({"name": ["longer"]}))
        assert b.ask("SELECT * FROM short") == []
    finally:
        admin.do(f"SET GLOBAL sql_mode = '{before}'")
        admin.close()


def test_a_session_that_lost_its_sql_mode_takes_no_value_for_sql(mariadb_url: str) -> None:
    engine = sa.create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'")
        connection.exec_driver_sql("CREATE TABLE t (name TEXT)")
        batch = pa.record_batch({"name": ["x'), ('injected') -- ", "\\'), ('injected') -- "]})
        adapter_of(connection.dialect).load(connection, sa.table("t", sa.column("name")), batch)
        found = [name for (name,) in connection.exec_driver_sql("SELECT name FROM t")]
    engine.dispose()
    assert len(found) == 2 and "injected" not in found


NAMES = ["", " ", "a\0b", "a\nb", 'a"b', "a`b", "a\\", "%s", "%(x)s", ":x", "a.b", "a;--", "a ", "ä😀", "n" * 80, "?"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.attack(
    who="who writes records",
    does="names a field of theirs so that it is no column's name, or SQL",
    gets="a column of exactly that name, or an error that asks for another",
)
def test_a_columns_name_is_kept_exactly_or_refused_once(sql_url: str, bench: Make, name: str) -> None:
    b = bench(sql_url)
    batch = pa.record_batch({name: pa.array([1, 2], pa.int64()), "v": pa.array([1, 2], pa.int64())})
    try:
        b.epoch(batch)
    except ConfigError:  # SchemaMismatch is one
        return
    with b.engine.connect() as connection:
        found = connection.scalars(sa.select(sa.column(exactly(name))).select_from(sa.table("t"))).all()
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize("table", ["onefold_epochs", "shop.onefold_sql_ledger", "Onefold_Store", "a\nb", "a\0b"])
def test_a_table_of_onefolds_own_is_no_target(table: str, tmp_path: Path) -> None:
    with raises(ConfigError, "option-value"):
        SqlSink(f"sqlite:///{tmp_path}/rows.db", table)


@pytest.fixture
def other() -> int:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    return 65534


@pytest.mark.attack(
    who="another user of the machine",
    does="makes a SQLite store, or its journal, or a link to one, where the pipeline will look, or has it in a folder"
    " of theirs, where they can move it away",
    gets="a start that is refused",
)
def test_a_sqlite_file_that_another_user_can_change_is_refused(tmp_path: Path, other: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "theirs.db").touch()
    os.chown(tmp_path / "theirs.db", other, other)
    (tmp_path / "journal.db-wal").touch()
    os.chown(tmp_path / "journal.db-wal", other, other)
    (tmp_path / "link.db").symlink_to(tmp_path / "ours.db")
    os.chown(tmp_path / "link.db", other, other, follow_symlinks=False)
    (tmp_path / "writable.db").touch()
    (tmp_path / "writable.db").chmod(0o666)
    (tmp_path / "into.db").symlink_to(tmp_path / "open" / "store.db")
    (tmp_path / "their").mkdir()
    os.chown(tmp_path / "their", other, other)
    for name in ("open/store.db", "their/store.db", "theirs.db", "journal.db", "link.db", "writable.db", "into.db"):
        store = CheckpointStore(f"sqlite:///{tmp_path / name}")
        with pytest.raises(ConfigError, match=r"could be another's file|what it says may be anybody's"):
            store.id()
        store.close()
    (tmp_path / "ours.db").unlink(missing_ok=True)
    (tmp_path / "mine.db").symlink_to(tmp_path / "ours.db")
    for way_out in (tmp_path / "mine.db", tmp_path / "ours.db"):
        store = CheckpointStore(f"sqlite:///{way_out}")
        assert store.id()
        store.close()
