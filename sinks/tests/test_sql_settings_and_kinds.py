"""SqlSink's settings, names and kinds of columns: what needs no server."""

from __future__ import annotations

import pickle
import sqlite3
from typing import Any

import psycopg.conninfo
import pyarrow as pa
import pymysql
import pytest
import sqlalchemy as sa
from harness.errors import raises
from sqlalchemy.dialects import mysql

from onefold.clients.sql.database import Database
from onefold.clients.sql.database_backend import Backend, Meaning
from onefold.clients.sql.url import url_of
from onefold.core import ConfigError, SinkKind
from onefold.sinks import PostgresSink, SqlSink
from onefold.sinks.name_parts import TableName
from onefold.sinks.postgres.sink_options import Delivery
from onefold.sinks.sql.adapters.sql_kinds import SqlFamily, SqlKind, kind_of
from onefold.sinks.sql.databases import adapter_of, dialect_of

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ("id",), "order": ("v",)}
SQLITE, MARIADB = (adapter_of(dialect_of(url_of(url, "the"))) for url in ("sqlite:///x", "mariadb+pymysql://h/d"))


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"mode": "merge"}, "option-value"),
        ({"key": ("id",)}, "options-conflict"),
        ({"mode": "upsert", "key": ("id",)}, "option-missing"),
        ({**UPSERT, "delete_when_true": "v"}, "options-conflict"),
        ({"lock_timeout_s": 0}, "option-value"),
    ],
)
def test_settings_that_make_no_sense_are_config_errors(settings: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        SqlSink("mariadb://u@h/d", "t", **settings)


@pytest.mark.parametrize(
    "url",
    [
        "no url",
        "oracle://u:geheim@h/d",
        "mysql+mysqldb://u:geheim@h/d",
        "sqlite://",
        "mariadb://u:odd@geheim:odd@h/d",  # which would be read as a port
        "mariadb://u:geheim",
    ],
)
def test_a_url_that_cannot_be_used_is_a_config_error_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SqlSink(url, "t")
    assert "geheim" not in str(caught.value)


def test_a_sink_names_its_driver_travels_whole_and_hides_its_password() -> None:
    sink = SqlSink("mariadb://u:geheim@h/d", 'shop."odd.name"', **UPSERT)
    again = pickle.loads(pickle.dumps(sink))
    assert again.store_url() == again.url == "mariadb+pymysql://u:geheim@h/d"
    assert (again.name, again.table) == ('shop."odd.name"', 'shop."odd.name"')
    assert TableName.parse(again.table) == TableName("shop", "odd.name"), "as reset finds it"
    assert "geheim" not in repr(sink) + repr(sink._settings)
    assert sink.guarantee().kind is SinkKind.LAST_RESOURCE
    assert sink.guarantee().atomic_epoch


@pytest.mark.parametrize("path", ["rows.db", "./rows.db", "../rows.db"])
def test_a_file_that_would_begin_in_the_working_directory_is_refused(path: str) -> None:
    with raises(ConfigError, "sqlite-relative"):
        SqlSink(f"sqlite:///{path}", "t")
    assert SqlSink("sqlite:////srv/rows.db", "t").url == "sqlite+pysqlite:////srv/rows.db"


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.int8(), SqlKind(SqlFamily.INTEGER, 16, 5)),
        (pa.uint32(), SqlKind(SqlFamily.INTEGER, 64, 19)),
        (pa.uint64(), SqlKind(SqlFamily.DECIMAL, 0, 20)),
        (pa.float16(), SqlKind(SqlFamily.FLOAT, 32)),
        (pa.decimal128(3, 5), SqlKind(SqlFamily.DECIMAL, 0, 5, 5)),
        (pa.decimal128(3, -2), SqlKind(SqlFamily.DECIMAL, 0, 5, 0)),
        (pa.decimal256(39, 0), None),
        (pa.large_string(), SqlKind(SqlFamily.TEXT)),
        (pa.binary(16), SqlKind(SqlFamily.BINARY)),
        (pa.date64(), SqlKind(SqlFamily.DATE)),
        (pa.timestamp("ns", "Europe/Berlin"), SqlKind(SqlFamily.INSTANT)),
        (pa.dictionary(pa.int8(), pa.string()), SqlKind(SqlFamily.TEXT)),
        (pa.list_(pa.int8()), None),
        (pa.duration("s"), None),
    ],
)
def test_each_arrow_type_has_its_kind(arrow: pa.DataType, kind: SqlKind | None) -> None:
    assert kind_of(arrow) == kind


@pytest.mark.parametrize(
    ("adapter", "arrow", "there"),
    [
        (MARIADB, pa.int32(), mysql.INTEGER(unsigned=True)),
        (MARIADB, pa.int32(), mysql.MEDIUMINT()),
        (MARIADB, pa.float64(), mysql.FLOAT()),
        (MARIADB, pa.float64(), mysql.DOUBLE(10, 2)),
        (MARIADB, pa.decimal128(10, 2), mysql.DECIMAL(10, 1)),
        (MARIADB, pa.string(), mysql.CHAR(10)),
        (MARIADB, pa.string(), mysql.SET("a")),
        (MARIADB, pa.string(), mysql.ENUM("a")),
        (MARIADB, pa.binary(), mysql.BINARY(10)),
        (MARIADB, pa.timestamp("us"), mysql.DATETIME()),
        (MARIADB, pa.timestamp("us"), mysql.TIMESTAMP(fsp=6)),
        (MARIADB, pa.time64("us"), mysql.TIME(fsp=3)),
        (SQLITE, pa.decimal128(10, 2), sa.Numeric(10, 2)),
        (SQLITE, pa.string(), sa.Integer()),
        (SQLITE, pa.float64(), sa.Integer()),
    ],
)
def test_a_column_that_would_change_a_value_is_not_taken(adapter: Any, arrow: pa.DataType, there: Any) -> None:
    kind = kind_of(arrow)
    assert kind is not None
    assert not adapter.takes(kind, there)
    assert adapter.takes(kind, adapter.column_type(kind)), "and the one that it would make is"


def _error(kind: type[Exception], *arguments: Any, **attributes: Any) -> Exception:
    error = type("WithAttributes", (kind,), attributes)(*arguments)
    assert isinstance(error, kind)
    return error


def _backend(url: str) -> Backend:
    return Database(url, 30.0).backend


ON_MARIADB, ON_POSTGRES, ON_SQLITE = map(_backend, ("mariadb://h/d", "postgresql://h/d", "sqlite:////x"))


@pytest.mark.parametrize(
    ("backend", "error", "meaning"),
    [
        (ON_MARIADB, pymysql.OperationalError(1213, "Deadlock"), Meaning.PASSING),
        (ON_MARIADB, pymysql.OperationalError(2013, "Lost connection"), Meaning.BROKEN),
        (ON_MARIADB, pymysql.OperationalError(1290, "read-only"), Meaning.PASSING),
        (ON_MARIADB, pymysql.OperationalError(1045, "Access denied"), Meaning.HOPELESS),
        (ON_MARIADB, pymysql.OperationalError(4025, "CONSTRAINT failed"), Meaning.BAD_ROW),
        (ON_MARIADB, pymysql.OperationalError(1040, "Too many connections"), Meaning.EXHAUSTED),
        (ON_MARIADB, pymysql.OperationalError(1021, "Disk full"), Meaning.EXHAUSTED),
        (ON_MARIADB, pymysql.InterfaceError(0, ""), Meaning.BROKEN),
        (ON_POSTGRES, psycopg.errors.ReadOnlySqlTransaction("x"), Meaning.PASSING),
        (ON_POSTGRES, psycopg.errors.AdminShutdown("x"), Meaning.BROKEN),
        (ON_POSTGRES, psycopg.DataError("NUL in text"), Meaning.BAD_ROW),
        (ON_SQLITE, _error(sqlite3.OperationalError, "full", sqlite_errorname="SQLITE_FULL"), Meaning.EXHAUSTED),
        (ON_SQLITE, _error(sqlite3.OperationalError, "x", sqlite_errorname="SQLITE_ERROR"), Meaning.HOPELESS),
    ],
)
def test_each_error_has_its_meaning(backend: Backend, error: Exception, meaning: Meaning) -> None:
    assert backend.meaning(error) is meaning


@pytest.mark.parametrize(("query", "timeout_s"), [("", 10), ("?connect_timeout=60", 60)])
def test_a_timeout_that_the_url_names_is_taken(query: str, timeout_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def stop(**settings: Any) -> None:
        asked.update(settings)
        raise ConnectionRefusedError

    monkeypatch.setattr(pymysql, "connect", stop)
    with pytest.raises(ConnectionRefusedError):
        _backend(f"mariadb+pymysql://h/d{query}").take()
    assert asked["connect_timeout"] == asked["read_timeout"] == timeout_s


def test_settings_of_tls_reach_the_driver_as_it_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(pymysql, "connect", lambda **settings: asked.update(settings) or exit())
    url = "mysql+pymysql://u%40x:p%2Fw@h:3307/d?ssl_ca=/ca.pem&ssl_check_hostname=false&ssl_key_password=k"
    with pytest.raises(SystemExit):
        _backend(url).take()
    assert asked["ssl"] == {"ca": "/ca.pem", "check_hostname": False} and asked["ssl_key_password"] == "k"
    named = {"host": "h", "port": 3307, "user": "u@x", "password": "p/w", "database": "d", "charset": "utf8mb4"}
    assert named.items() <= asked.items()


def test_what_an_upsert_needs_of_the_rows_is_part_of_its_promise() -> None:
    promised = SqlSink("mariadb://h/d", "t", **UPSERT, delete_when_true="gone", deletes_kept_s=60).guarantee()
    text = "; ".join(promised.conditions)
    assert "versions of one row differ in v" in text
    assert "60 s later than a newer deletion" in text
    assert "versions" not in "; ".join(SqlSink("mariadb://h/d", "t").guarantee().conditions)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_on_postgres_it_is_a_staged_postgres_sink_for_the_same_database(scheme: str) -> None:
    made: Any = SqlSink(f"{scheme}://u%40x:ge%20h%25@h:5433/d?options=-c%20role%3Dr&sslmode=require", "s.t", **UPSERT)
    assert isinstance(made, PostgresSink)
    assert psycopg.conninfo.conninfo_to_dict(made.url) == {
        "user": "u@x",
        "password": "ge h%",
        "host": "h",
        "port": "5433",
        "dbname": "d",
        "options": "-c role=r",
        "sslmode": "require",
    }
    assert made.settings.wanted is Delivery.STAGED
    assert pickle.loads(pickle.dumps(made)).guarantee().kind is SinkKind.LAST_RESOURCE
    with raises(ConfigError, "database-unknown"):
        SqlSink("postgresql+psycopg2://u:geheim@h/d", "t")


def test_what_marks_deletions_is_one_column() -> None:
    with raises(ConfigError, "options-conflict"):
        SqlSink("mariadb://h/d", "t", **UPSERT, delete_when_true="gone", delete_when_null="name")
