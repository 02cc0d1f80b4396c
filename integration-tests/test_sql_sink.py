"""SqlSink through its contract, on SQLite, MariaDB and Postgres alike; the databases are asked, not our objects."""

from __future__ import annotations

import resource
import struct
import tempfile
import time as clock
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sql_bench import DELETES, PIPELINE, UPSERT, Make, rows

from onefold.core import (
    BadRecord,
    ConfigError,
    InDoubt,
    OutOfResources,
    Retriable,
    SchemaMismatch,
    TaskId,
    WorkLost,
)
from onefold.local import MariaDbServer, PostgresServer
from onefold.sinks import SqlSink
from onefold.sinks.sql import committer as committers

pytestmark = pytest.mark.servers


# append


def test_every_row_of_every_task_is_there_once_and_the_stage_is_empty_again(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.epoch(rows((1, 1, "a"), (2, 1, None)), rows((3, 1, "it's \\ \" % ü🎈\n\t")))
    b.epoch(rows((1, 1, "a")))
    expected = [(1, 1, "a"), (1, 1, "a"), (2, 1, None), (3, 1, "it's \\ \" % ü🎈\n\t")]
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == expected
    assert b.staged() == 0


def test_a_decision_asked_again_merges_nothing_again(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 1, "a")))]
    for _ in range(3):
        b.decide(record, manifest)
    assert b.ask("SELECT id FROM t") == [(1,)]
    assert b.staged() == 2  # until commit, one row and its attempt


def test_a_large_batch_travels_whole(sql_url: str, bench: Make) -> None:
    count = 60_000  # more than is encoded at once
    b = bench(sql_url)
    ids = pa.array(range(count), pa.int64())
    b.epoch(pa.record_batch({"id": ids, "text": pa.array([f"{'x' * (i % 97)}'{i}" for i in range(count)])}))
    assert b.ask("SELECT count(*), sum(id), sum(length(text)) FROM t") == [
        (count, count * (count - 1) // 2, sum(i % 97 + 1 + len(str(i)) for i in range(count)))
    ]


# types


NAIVE = [datetime(1, 1, 1), datetime(2024, 2, 29, 23, 59, 59, 123_456), datetime(9999, 12, 31, 23, 59, 59, 999_999)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1, None]),
    "byte": (pa.uint8(), [0, 255, None]),
    "four": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "eight": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "unsigned": (pa.uint64(), [0, 2**64 - 1, None]),
    "single": (pa.float32(), [1.5, -(2.0**-100), None]),
    "double": (pa.float64(), [0.1 + 0.2, -1.7976931348623157e308, 5e-324]),
    "money": (
        pa.decimal128(38, 10),
        [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001"), None],
    ),
    "text": (pa.string(), ["", "NULL \\N 'x' \"y\" %s :z ü🎈 ", None]),
    "bytes": (pa.binary(), [b"", bytes(range(256)), None]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "clock": (pa.time64("us"), [time(0), time(23, 59, 59, 999_999), None]),
    "local": (pa.timestamp("us"), NAIVE),
    "instant": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in NAIVE]),
    "nothing": (pa.null(), [None, None, None]),
    "choice": (pa.dictionary(pa.int8(), pa.string()), ["b", None, "b"]),
    "select": (pa.int64(), [1, 2, 3]),
    "Mixed % Case": (pa.int64(), [1, 2, 3]),
}


def test_every_kind_of_value_comes_back_exactly(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    arrays = {
        name: pa.array(values, kind) if not pa.types.is_dictionary(kind) else pa.array(values).dictionary_encode()
        for name, (kind, values) in VALUES.items()
    }
    batch = pa.record_batch(arrays)
    for _ in range(2):  # into the table that it makes, then into one that is there
        b.open(batch.schema)
        b.epoch(batch)
    columns = [sa.column(sa.sql.quoted_name(name, quote=True)) for name in VALUES]
    query = sa.select(*columns).select_from(sa.table("t")).order_by(sa.column("select"))
    with b.engine.connect() as connection:
        found = connection.execute(query).mappings().all()
    assert len(found) == 6
    for name, (_, values) in VALUES.items():
        read = [_read(b.engine.dialect.name, name, row[name]) for row in found]
        assert read == [value for value in values for _ in range(2)], name


def _read(dialect: str, name: str, value: Any) -> Any:
    """As the docs say that a database keeps it: only Postgres keeps zones; SQLite has text for many."""
    if value is None:
        return None
    if dialect == "sqlite" and name in SQLITE_TEXT:
        value = SQLITE_TEXT[name](value)
    if dialect == "postgresql" and name == "single":
        return struct.unpack("f", struct.pack("f", value))[0]  # it is written with as few digits as tell it from others
    if name == "clock" and dialect == "mariadb":
        value = (datetime(1, 1, 1) + value).time()  # PyMySQL reads a TIME as a timedelta
    if name == "instant" and dialect != "postgresql":
        return value.replace(tzinfo=UTC)
    return bool(value) if name == "flag" else value


SQLITE_TEXT: dict[str, Callable[[str], Any]] = {
    "money": Decimal,
    "unsigned": Decimal,
    "day": date.fromisoformat,
    "clock": time.fromisoformat,
    "local": datetime.fromisoformat,
    "instant": datetime.fromisoformat,
}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_mariadb_cannot_hold_is_a_bad_record(mariadb_url: str, bench: Make, value: float) -> None:
    with pytest.raises(BadRecord, match="column x: a number that is not finite"):
        bench(mariadb_url).epoch(pa.record_batch({"x": pa.array([value])}))


def test_not_a_number_is_a_bad_record_in_sqlite(tmp_path: Path, bench: Make) -> None:
    with pytest.raises(BadRecord, match="NaN"):
        bench(f"sqlite:///{tmp_path / 'x.db'}").epoch(pa.record_batch({"x": pa.array([float("nan")])}))


def test_what_no_column_holds_is_refused_with_every_column_named(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    odd = pa.schema({"a": pa.list_(pa.int64()), "b": pa.duration("us"), "c": pa.int64()})
    with pytest.raises(SchemaMismatch, match=r"(?s)a: list<.*b: duration"):
        b.open(odd)
    assert not sa.inspect(b.engine).has_table("t")


def test_columns_that_do_not_fit_are_refused_each_with_what_to_do(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.do("CREATE TABLE t (n DECIMAL(5,2), name INTEGER, needed INTEGER NOT NULL, at DATE)")
    odd = {"n": pa.decimal128(9, 4), "name": pa.string(), "At": pa.date32(), "at": pa.timestamp("us")}
    with pytest.raises(SchemaMismatch) as caught:
        b.open(pa.schema(odd))
    text = str(caught.value)
    for said in ("n: the rows have decimal128(9, 4)", "name: ", "needed: the table says NOT NULL", "case matters"):
        assert said in text, text


def test_a_value_that_the_table_refuses_is_a_bad_record_and_nothing_is_decided(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.do("CREATE TABLE t (id BIGINT, v BIGINT CHECK (v > 0), name VARCHAR(100))")
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 1, "a"), (2, -1, "b")))]
    with pytest.raises(BadRecord):
        b.decide(record, manifest)
    assert b.ask("SELECT * FROM t") == []
    assert b.store.facts(PIPELINE).unfinished == (record,)


TRIGGERS = {
    "sqlite": ["CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 13 BEGIN SELECT RAISE(ABORT, 'no 13'); END"],
    "mariadb": [
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW"
        " IF NEW.id = 13 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no 13'; END IF"
    ],
    "postgresql": [
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no 13'; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id = 13) EXECUTE FUNCTION no()",
    ],
}


def test_a_row_that_a_trigger_refuses_is_a_bad_record(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.epoch(rows((1, 1, "a")))
    b.do(*TRIGGERS[b.engine.dialect.name])
    record = b.begin()
    with pytest.raises(BadRecord, match="no 13"):
        b.decide(record, [b.prepare(record, rows((13, 1, "b")))])
    b.finish(record, [b.prepare(record, rows((14, 1, "c")))])


def test_texts_come_whole_into_a_database_of_another_encoding(postgres_url: str, bench: Make) -> None:
    url = f"{postgres_url}_latin1"
    admin = sa.create_engine(bench(postgres_url).sink.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        name = url.rpartition("/")[2]
        made = f"CREATE DATABASE {name} ENCODING LATIN1 LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
        connection.exec_driver_sql(made)
        try:
            b = bench(url)
            b.epoch(rows((1, 1, "é")))
            assert b.ask("SELECT name, length(name), ascii(name) FROM t") == [("é", 1, 233)]
            b.close()
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


# when things go wrong


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
    with pytest.raises(OutOfResources, match="is full"):
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
    "postgresql": "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'",
}


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
    with b.committer._database.transaction() as connection:  # on the connection that the writer had
        dialect = connection.dialect.name
        assert dialect == "sqlite" or int(connection.scalar(sa.text(IDLE[dialect]))) == 1000
    b.finish(record, [committable])
    assert b.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


def test_a_role_that_may_not_write_the_table_is_told_when_the_sink_opens(
    mariadb_url: str, mariadb_server: MariaDbServer, bench: Make
) -> None:
    admin, name = bench(mariadb_url), f"u{uuid.uuid4().hex[:8]}"
    database = mariadb_url.rpartition("/")[2]
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
    with pytest.raises(ConfigError, match="INSERT command denied") as caught:
        SqlSink(mine, "t").open(PIPELINE, rows((1, 1, "a")).schema)
    assert "geheim" not in str(caught.value)
    with pytest.raises(ConfigError, match="Access denied") as caught:
        SqlSink(mine.replace("geheim", "falsch"), "t").open(PIPELINE, rows((1, 1, "a")).schema)
    assert "falsch" not in str(caught.value)
    assert mariadb_server.status().running


def test_a_table_without_transactions_is_refused(mariadb_url: str, bench: Make) -> None:
    b = bench(mariadb_url)
    b.do("CREATE TABLE t (id BIGINT) ENGINE = MyISAM")
    with pytest.raises(ConfigError, match="kept by MyISAM"):
        b.open(pa.schema({"id": pa.int64()}))


def test_a_view_is_refused(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.do("CREATE TABLE real_one (id BIGINT)", "CREATE VIEW t AS SELECT * FROM real_one")
    with pytest.raises(ConfigError, match="t is a view"):
        b.open(pa.schema({"id": pa.int64()}))


@pytest.mark.parametrize("moment", ["load", "staged", "merge", "decided"])
def test_a_mariadb_that_dies_in_mid_epoch_loses_and_doubles_nothing(
    mariadb_url: str, mariadb_server: MariaDbServer, bench: Make, monkeypatch: pytest.MonkeyPatch, moment: str
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


def again(server: MariaDbServer | PostgresServer) -> None:
    server.kill()
    server.start()


def test_a_postgres_that_emptied_the_stage_is_noticed_before_the_decision(
    postgres_url: str, postgres_server: PostgresServer, bench: Make
) -> None:
    b = bench(postgres_url)
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 1, "a")))]
    again(postgres_server)
    b.engine.dispose()
    with pytest.raises(WorkLost):
        b.committer.verify(manifest)
    with pytest.raises(WorkLost, match="found 0 rows, and the manifest says 1"):
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
        with pytest.raises(OutOfResources, match=rf"rows wait in a file in {tempfile.gettempdir()} .*or set TMPDIR"):
            b.prepare(record, pa.record_batch({"id": [1], "v": [1], "name": ["x" * 1_000_000]}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    b.finish(record, [b.prepare(record, rows((1, 1, "a")))])


def test_a_full_sqlite_file_is_waited_for_and_nothing_is_staged(tmp_path: Path, bench: Make) -> None:
    b = bench(f"sqlite:///{tmp_path / 'x.db'}")
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    task = TaskId(PIPELINE, 1, record.epoch, record.timestamp_ms, uuid.uuid4())
    writer: Any = b.sink.writer(task)

    def tiny(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    sa.event.listen(writer._database.engine, "begin", tiny)
    writer.write(pa.record_batch({"id": [1], "v": [1], "name": ["x" * 1_000_000]}))
    with pytest.raises(OutOfResources, match="full"):
        writer.prepare()
    sa.event.remove(writer._database.engine, "begin", tiny)
    assert b.staged() == 0
    writer._database.close()


def test_a_sqlite_file_that_may_only_be_read_is_told_as_such(tmp_path: Path, bench: Make) -> None:
    bench(f"sqlite:///{tmp_path / 'x.db'}").epoch(rows((1, 1, "a")))
    sink = SqlSink(f"sqlite:///file:{tmp_path / 'x.db'}?mode=ro&uri=true", "t")
    with pytest.raises(ConfigError, match="readonly database"):
        sink.open("another", rows((1, 1, "a")).schema)
