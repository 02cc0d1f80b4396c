"""SqlSink through its contract, on SQLite, MariaDB and Postgres alike; the databases are asked, not our objects."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.tables.sql_bench import PIPELINE, Make, rows, staged_tables

from onefold.core import BadRecord, DataLoss, SchemaMismatch, TaskId
from onefold.core.findings import Level
from onefold.sinks import SqlSink

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
    with raises(BadRecord, "value-not-storable"):
        bench(mariadb_url).epoch(pa.record_batch({"x": pa.array([value])}))


def test_not_a_number_is_a_bad_record_in_sqlite(tmp_path: Path, bench: Make) -> None:
    with raises(BadRecord, "value-not-storable"):
        bench(f"sqlite:///{tmp_path / 'x.db'}").epoch(pa.record_batch({"x": pa.array([float("nan")])}))


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)  # Postgres has arrays and intervals
def test_what_no_column_holds_is_refused_with_every_column_named(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    odd = pa.schema({"a": pa.list_(pa.int64()), "b": pa.duration("us"), "c": pa.int64()})
    with raises(SchemaMismatch, "table-not-creatable"):
        b.open(odd)
    assert not sa.inspect(b.engine).has_table("t")


def test_columns_that_do_not_fit_are_refused_each_with_what_to_do(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.do("CREATE TABLE t (n DECIMAL(5,2), name INTEGER, needed INTEGER NOT NULL, at DATE)")
    odd = {"n": pa.decimal128(9, 4), "name": pa.string(), "At": pa.date32()}
    with pytest.raises(SchemaMismatch) as caught:
        b.open(pa.schema(odd))
    text = str(caught.value)
    needed = "! needed  -" if b.is_postgres else "needed: the table says NOT NULL"
    wide = "! n       decimal128(9, 4)" if b.is_postgres else "n: the rows have decimal128(9, 4)"
    for said in (wide, "name", needed, "case matters"):
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
    with raises(BadRecord, "row-refused"):
        b.decide(record, [b.prepare(record, rows((13, 1, "b")))])
    b.finish(record, [b.prepare(record, rows((14, 1, "c")))])


def test_texts_come_whole_into_a_database_of_another_encoding(postgres_url: str, bench: Make) -> None:
    url = f"{postgres_url}_latin1"
    admin = sa.create_engine(bench(postgres_url).sink.store_url(), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
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


# who comes late


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)  # Postgres: test_postgres_staged
def test_a_zombie_with_other_columns_takes_no_stage_away_and_what_is_outgrown_goes(sql_url: str, bench: Make) -> None:
    live = bench(sql_url)
    live.epoch(rows((1, 1, "a")))
    record = live.begin()
    manifest = [live.prepare(record, rows((2, 1, "b")))]
    zombie = SqlSink(sql_url, "t")
    older = rows((9, 1, "z")).select(["id", "v"])
    late = zombie.open(PIPELINE, older.schema)
    live.finish(record, manifest)
    assert live.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    task = TaskId(PIPELINE, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
    writer = zombie.writer(task)
    writer.write(older)
    assert writer.prepare() is not None
    late.close()
    assert len(staged_tables(live.engine)) == 3, "the live one's, the zombie's, and the list"
    again = bench(sql_url)
    again.open(rows((1, 1, "a")).schema)
    again.end = live.end
    again.committer.abort(again.committer.leftovers(9))
    again.epoch(rows((3, 1, "c")))
    assert len(staged_tables(live.engine)) == 2
    assert again.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]


def test_nobody_waits_for_a_zombie_that_holds_an_outgrown_stage(mariadb_url: str, bench: Make) -> None:
    live = bench(mariadb_url)
    live.open(rows((1, 1, "a")).schema)
    zombie, older = SqlSink(mariadb_url, "t"), rows((9, 1, "z")).select(["id", "v"])
    late = zombie.open(PIPELINE, older.schema)
    writer = zombie.writer(TaskId(PIPELINE, 1, 1, 1, uuid.uuid4()))
    writer.write(older)
    live.epoch(rows((1, 1, "a")))
    assert len(staged_tables(live.engine)) == 3, "it is left to the next epoch"
    writer.abort()
    live.epoch(rows((2, 1, "b")))
    assert len(staged_tables(live.engine)) == 2
    late.close()


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)  # Postgres: test_postgres_outages
def test_a_database_that_came_back_as_an_older_copy_is_noticed(sql_url: str, bench: Make) -> None:
    b = bench(sql_url)
    b.epoch(rows((1, 1, "a")))
    b.epoch(rows((2, 1, "b")))
    b.do("UPDATE onefold_sql_ledger SET epoch = 1")
    record = b.begin()
    manifest = [b.prepare(record, rows((3, 1, "c")))]
    with raises(DataLoss, "destination-older-copy"):
        b.decide(record, manifest)
    assert b.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)  # Postgres: test_doctor
def test_what_the_guarantee_rests_on_is_examined(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, mode="upsert", key="id", order="v")
    b.epoch(rows((1, 1, "a")))
    levels = {finding.level for finding in b.sink.examine(PIPELINE, None)}
    assert Level.FINE in levels and Level.PROBLEM not in levels
    b.do("DROP TABLE t")
    assert "is made by the first start" in " ".join(f.says for f in b.sink.checks(PIPELINE, None))
