"""SqlSink through its contract, on SQLite, MariaDB and Postgres alike; the databases are asked, not our objects."""

from __future__ import annotations

import pickle
import random
import struct
import time as clock
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from onefold.core import (
    BadRecord,
    Committable,
    ConfigError,
    InDoubt,
    LedgerEntry,
    Positions,
    Range,
    Retriable,
    SchemaMismatch,
    TaskId,
    WorkLost,
)
from onefold.core.contract import Decided, EpochRecord
from onefold.core.effects import EpochRequest
from onefold.core.store import CheckpointStore
from onefold.local import MariaDbServer, PostgresServer
from onefold.sinks import SqlSink
from onefold.sinks.sql import committer as committers

pytestmark = pytest.mark.servers
DATABASES = ["sqlite", "mariadb", "postgres"]
PIPELINE = "p"
NOW_MS = 1_700_000_000_000


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rows.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


class Bench:
    """One sink, its store, and epochs through both."""

    def __init__(self, url: str, table: str = "t", **settings: Any) -> None:
        self.sink = SqlSink(url, table, **settings)
        self.store = CheckpointStore(self.sink.store_url() or "", lock_timeout_s=settings.get("lock_timeout_s", 30))
        self.engine = sa.create_engine(self.sink.url, poolclass=sa.NullPool)
        self.generation = self.store.acquire(PIPELINE, 0)
        self.committer: Any = None
        self.end = 0

    def close(self) -> None:
        if self.committer is not None:
            self.committer.close()
        self.store.close()
        self.engine.dispose()

    def open(self, schema: pa.Schema) -> None:
        if self.committer is not None:
            self.committer.close()
        self.committer = self.sink.open(PIPELINE, schema)

    def begin(self, now_ms: int = NOW_MS) -> EpochRecord:
        span = Range(Positions.of({"t/0": self.end}), Positions.of({"t/0": self.end + 1}))
        request = EpochRequest(span, "q", self.end, "job", (self.sink.name,))
        last = self.store.facts(PIPELINE).last
        return self.store.open_epoch(self.generation, request, last.epoch if last else 0, now_ms)

    def prepare(self, record: EpochRecord, *batches: pa.RecordBatch) -> Committable:
        task = TaskId(PIPELINE, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        writer = pickle.loads(pickle.dumps(self.sink)).writer(task)
        for batch in batches:
            writer.write(batch)
        committable = writer.prepare()
        assert committable is not None
        return committable

    def decide(self, record: EpochRecord, manifest: Sequence[Committable]) -> Decided:
        entry = LedgerEntry(record.epoch, record.generation, record.timestamp_ms, record.range.end, self.store.id())

        def merge(connection: sa.Connection) -> None:
            self.committer.merge(connection, record, manifest, entry)

        return self.store.decide(self.generation, record, tuple(manifest), NOW_MS, merge)

    def finish(self, record: EpochRecord, manifest: Sequence[Committable]) -> None:
        self.committer.verify(manifest)
        decided = self.decide(record, manifest)
        self.committer.commit(decided, manifest)
        self.store.complete(self.generation, decided, NOW_MS)
        self.end += 1

    def epoch(self, *batches: pa.RecordBatch, now_ms: int = NOW_MS) -> None:
        """One whole epoch, each batch by a task of its own."""
        if self.committer is None:
            self.open(batches[0].schema)
        record = self.begin(now_ms)
        self.finish(record, [self.prepare(record, batch) for batch in batches])

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]

    def do(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def staged(self) -> int:
        """Rows that wait in the stage, and attempts that are listed."""
        names = [n for n in sa.inspect(self.engine).get_table_names() if n.startswith("onefold_stage_")]
        return sum(int(self.ask(f"SELECT count(*) FROM {name}")[0][0]) for name in [*names, "onefold_sql_staged"])


Make = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[Make]:
    made: list[Bench] = []

    def make(url: str, table: str = "t", **settings: Any) -> Bench:
        made.append(Bench(url, table, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


UPSERT = {"mode": "upsert", "key": ("id",), "order": ("v",)}
DELETES = {**UPSERT, "delete_when_true": "gone"}


def rows(*found: tuple[Any, ...]) -> pa.RecordBatch:
    """Rows of id, v, name, and gone where there are four."""
    names = ["id", "v", "name", "gone"][: len(found[0])]
    types = [pa.int64(), pa.int64(), pa.string(), pa.bool_()]
    columns = zip(*found, strict=True)
    return pa.record_batch({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=False)})


# append


def test_every_row_of_every_task_is_there_once_and_the_stage_is_empty_again(url: str, bench: Make) -> None:
    b = bench(url)
    b.epoch(rows((1, 1, "a"), (2, 1, None)), rows((3, 1, "it's \\ \" % ü🎈\n\t")))
    b.epoch(rows((1, 1, "a")))
    expected = [(1, 1, "a"), (1, 1, "a"), (2, 1, None), (3, 1, "it's \\ \" % ü🎈\n\t")]
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == expected
    assert b.staged() == 0


def test_a_decision_asked_again_merges_nothing_again(url: str, bench: Make) -> None:
    b = bench(url)
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 1, "a")))]
    for _ in range(3):
        b.decide(record, manifest)
    assert b.ask("SELECT id FROM t") == [(1,)]
    assert b.staged() == 2  # until commit, one row and its attempt


def test_a_large_batch_travels_whole(url: str, bench: Make) -> None:
    count = 60_000  # more than is encoded at once
    b = bench(url)
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


def test_every_kind_of_value_comes_back_exactly(url: str, bench: Make) -> None:
    b = bench(url)
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


def test_what_no_column_holds_is_refused_with_every_column_named(url: str, bench: Make) -> None:
    b = bench(url)
    odd = pa.schema({"a": pa.list_(pa.int64()), "b": pa.duration("us"), "c": pa.int64()})
    with pytest.raises(SchemaMismatch, match=r"(?s)a: list<.*b: duration"):
        b.open(odd)
    assert not sa.inspect(b.engine).has_table("t")


def test_columns_that_do_not_fit_are_refused_each_with_what_to_do(url: str, bench: Make) -> None:
    b = bench(url)
    b.do("CREATE TABLE t (n DECIMAL(5,2), name INTEGER, needed INTEGER NOT NULL, at DATE)")
    odd = {"n": pa.decimal128(9, 4), "name": pa.string(), "At": pa.date32(), "at": pa.timestamp("us")}
    with pytest.raises(SchemaMismatch) as caught:
        b.open(pa.schema(odd))
    text = str(caught.value)
    for said in ("n: the rows have decimal128(9, 4)", "name: ", "needed: the table says NOT NULL", "case matters"):
        assert said in text, text


def test_a_value_that_the_table_refuses_is_a_bad_record_and_nothing_is_decided(url: str, bench: Make) -> None:
    b = bench(url)
    b.do("CREATE TABLE t (id BIGINT, v BIGINT CHECK (v > 0), name VARCHAR(100))")
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    manifest = [b.prepare(record, rows((1, 1, "a"), (2, -1, "b")))]
    with pytest.raises(BadRecord):
        b.decide(record, manifest)
    assert b.ask("SELECT * FROM t") == []
    assert b.store.facts(PIPELINE).unfinished == (record,)


# upsert


def test_the_newest_version_of_a_key_wins_within_and_across_epochs(url: str, bench: Make) -> None:
    b = bench(url, **UPSERT)
    b.epoch(rows((1, 5, "new"), (1, 3, "old"), (2, 1, "x")), rows((1, 4, "older")))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 5, "new"), (2, 1, "x")]
    b.epoch(rows((1, 4, "late"), (2, 2, None), (3, 1, "y")))
    b.epoch(rows((1, 5, "equal"), (2, 2, "equal")))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 5, "new"), (2, 2, None), (3, 1, "y")]
    assert b.staged() == 0


def test_a_null_order_in_the_table_is_the_oldest_and_several_columns_order_in_turn(url: str, bench: Make) -> None:
    b = bench(url, mode="upsert", key=("id",), order=("major", "minor"))
    b.do(
        "CREATE TABLE t (id BIGINT NOT NULL, major BIGINT, minor BIGINT, UNIQUE (id))",
        "INSERT INTO t VALUES (1, NULL, 9), (2, 1, NULL), (3, 1, 5), (4, 2, 0)",
    )
    four = [(1, 0, 0), (2, 1, 0), (3, 1, 6), (4, 1, 9)]
    columns = zip(*four, strict=True)
    names = ("id", "major", "minor")
    b.epoch(pa.record_batch({name: pa.array(column) for name, column in zip(names, columns, strict=True)}))
    assert b.ask("SELECT id, major, minor FROM t ORDER BY id") == [(1, 0, 0), (2, 1, 0), (3, 1, 6), (4, 2, 0)]


@pytest.mark.parametrize("row", [(None, 1, "a"), (1, None, "a")], ids=["key", "order"])
def test_a_row_without_key_or_order_is_a_bad_record(url: str, bench: Make, row: tuple[Any, ...]) -> None:
    with pytest.raises(BadRecord, match="null, and key and order columns"):
        bench(url, **UPSERT).epoch(rows((7, 7, "b"), row))


def test_a_delete_takes_what_is_not_newer_and_a_late_older_record_does_not_bring_it_back(url: str, bench: Make) -> None:
    b = bench(url, **DELETES)
    b.epoch(rows((1, 5, "a", False), (2, 5, "b", None), (3, 5, "c", False)))
    assert [c["name"] for c in sa.inspect(b.engine).get_columns("t")] == ["id", "v", "name"]
    b.epoch(rows((1, 5, None, True), (2, 4, None, True), (3, 6, None, True), (4, 9, None, True)))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(2, 5, "b")]
    b.epoch(rows((1, 5, "late", False), (3, 5, "late", False), (4, 8, "late", False), (4, 9, "equal", False)))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(2, 5, "b")]
    b.epoch(rows((1, 6, "again", False), (4, 10, "again", False), (4, 10, None, True)))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 6, "again"), (2, 5, "b")]


def test_a_delete_is_forgotten_after_its_time_by_the_epochs_own_clock(url: str, bench: Make) -> None:
    b = bench(url, **DELETES, deletes_kept_s=60)
    b.epoch(rows((1, 5, None, True)), now_ms=NOW_MS)
    b.epoch(rows((1, 4, "late", False)), now_ms=NOW_MS + 60_000)
    assert b.ask("SELECT * FROM t") == []
    b.epoch(rows((2, 1, "other", False)), now_ms=NOW_MS + 60_001)
    b.epoch(rows((1, 4, "late", False)), now_ms=NOW_MS + 60_002)
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 4, "late"), (2, 1, "other")]


def test_random_epochs_give_what_a_model_of_them_gives(url: str, bench: Make) -> None:
    b, chance = bench(url, **DELETES), random.Random(20_26)
    seen: dict[int, tuple[int, bool]] = {}  # the newest of each key; among equals, the delete
    for _ in range(12):
        some = [
            (chance.randrange(9), chance.randrange(12), chance.random() < 0.3) for _ in range(chance.randrange(1, 20))
        ]
        for key, version, gone in some:
            seen[key] = max(seen.get(key, (-1, False)), (version, gone))
        batch = rows(*((key, version, f"{key}.{version}", gone) for key, version, gone in some))
        b.epoch(batch.slice(0, len(some) // 2 or 1), *([batch.slice(len(some) // 2)] if len(some) > 1 else []))
        living = sorted((key, v, f"{key}.{v}") for key, (v, gone) in seen.items() if not gone)
        assert b.ask("SELECT id, v, name FROM t ORDER BY id") == living


def test_keys_that_differ_in_case_or_blanks_are_different_rows_and_may_be_of_several_kinds(
    url: str, bench: Make
) -> None:
    b = bench(url, mode="upsert", key=("k", "day"), order=("at",), delete_when_true="gone")
    texts = ["a", "A", "a ", "ä", "'"]
    batch = pa.record_batch(
        {
            "k": pa.array(texts),
            "day": pa.array([date(2024, 1, 1)] * 5),
            "at": pa.array([datetime(2024, 1, 1, 0, 0, 0, i) for i in range(5)], pa.timestamp("us", "UTC")),
            "gone": pa.array([False, False, True, False, False]),
        }
    )
    b.epoch(batch)
    b.epoch(batch)
    assert sorted(k for (k,) in b.ask("SELECT k FROM t")) == sorted(["a", "A", "ä", "'"])


IGNORING_CASE = {
    "sqlite": "VARCHAR(20) COLLATE NOCASE",
    "mariadb": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "postgresql": "VARCHAR(20) COLLATE ignoring_case",
}


def test_keys_are_equal_where_the_table_takes_them_for_equal(url: str, bench: Make) -> None:
    b = bench(url, mode="upsert", key=("k",), order=("v",), delete_when_true="gone")
    dialect = b.engine.dialect.name
    if dialect == "postgresql":
        b.do("CREATE COLLATION ignoring_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    b.do(f"CREATE TABLE t (k {IGNORING_CASE[dialect]} PRIMARY KEY, v BIGINT)")

    def versions(*found: tuple[str, int, bool]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip(("k", "v", "gone"), one, strict=True)) for one in found])

    b.epoch(versions(("a", 1, False), ("b", 1, False)))
    b.epoch(versions(("A", 3, False), ("a", 2, False), ("C", 1, False), ("c", 2, False)))
    assert b.ask("SELECT lower(k), v FROM t ORDER BY v, lower(k)") == [("b", 1), ("c", 2), ("a", 3)]
    b.epoch(versions(("B", 1, True), ("a", 2, True)), versions(("c", 4, True), ("C", 3, False)))
    b.epoch(versions(("b", 1, False), ("C", 4, False)))
    assert b.ask("SELECT lower(k), v FROM t") == [("a", 3)]


def test_a_key_of_another_collation_than_the_databases_is_compared_by_its_own(postgres_url: str, bench: Make) -> None:
    b = bench(postgres_url, 'shop."% Orders"', **UPSERT | {"key": ("name",)})
    b.do("CREATE SCHEMA shop", 'CREATE TABLE shop."% Orders" (id BIGINT, v BIGINT, name TEXT COLLATE "C" PRIMARY KEY)')
    b.epoch(rows((1, 1, "a"), (2, 2, "a"), (3, 1, "A")))
    b.epoch(rows((4, 1, "a"), (5, 2, "A")))
    assert b.ask('SELECT id FROM shop."% Orders" ORDER BY id') == [(2,), (5,)]


def test_an_upsert_needs_a_unique_index_of_exactly_its_key(url: str, bench: Make) -> None:
    b = bench(url, **UPSERT)
    b.do("CREATE TABLE t (id BIGINT, v BIGINT, name VARCHAR(20), UNIQUE (id, v))")
    with pytest.raises(ConfigError, match=r"unique index on exactly the key \(id\)"):
        b.open(rows((1, 1, "a")).schema)
    b.do("CREATE UNIQUE INDEX by_id ON t (id)")
    b.epoch(rows((1, 1, "a")))


def test_columns_that_are_not_there_or_do_not_order_are_config_errors(url: str, bench: Make) -> None:
    with pytest.raises(ConfigError, match="needs the columns v, and the rows have id"):
        bench(url, **UPSERT).open(pa.schema({"id": pa.int64()}))
    with pytest.raises(ConfigError, match="does not tell here which row is newer"):
        bench(url, "u", mode="upsert", key=("id",), order=("name",)).open(rows((1, 1, "a")).schema)


@pytest.mark.parametrize("name", ["onefold_attempt", "onefold_row", "onefold_rank", "onefold_timestamp_ms"])
def test_columns_named_as_the_sinks_own_are_config_errors(tmp_path: Path, bench: Make, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: the sink's own columns have that name"):
        bench(f"sqlite:///{tmp_path / 'x.db'}", **DELETES).open(
            rows((1, 1, "a", True)).schema.append(pa.field(name, pa.int64()))
        )


def test_a_table_that_requires_the_column_that_marks_deletes_is_refused(tmp_path: Path, bench: Make) -> None:
    b = bench(f"sqlite:///{tmp_path / 'x.db'}", **DELETES)
    b.do("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, name TEXT, gone BOOLEAN NOT NULL)")
    with pytest.raises(SchemaMismatch, match="gone: the table says NOT NULL without a default"):
        b.open(rows((1, 1, "a", True)).schema)


# when things go wrong


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


def test_a_task_may_wait_for_its_rows_and_the_driver_may_not_be_idle_with_locks(url: str, bench: Make) -> None:
    b = bench(url, lock_timeout_s=2)
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


def test_a_view_is_refused(url: str, bench: Make) -> None:
    b = bench(url)
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


def test_a_full_sqlite_file_is_retriable_and_nothing_is_staged(tmp_path: Path, bench: Make) -> None:
    b = bench(f"sqlite:///{tmp_path / 'x.db'}")
    b.open(rows((1, 1, "a")).schema)
    record = b.begin()
    task = TaskId(PIPELINE, 1, record.epoch, record.timestamp_ms, uuid.uuid4())
    writer: Any = b.sink.writer(task)

    def tiny(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    sa.event.listen(writer._database.engine, "begin", tiny)
    writer.write(pa.record_batch({"id": [1], "v": [1], "name": ["x" * 1_000_000]}))
    with pytest.raises(Retriable, match="full"):
        writer.prepare()
    sa.event.remove(writer._database.engine, "begin", tiny)
    assert b.staged() == 0
    writer._database.close()


def test_a_sqlite_file_that_may_only_be_read_is_told_as_such(tmp_path: Path, bench: Make) -> None:
    bench(f"sqlite:///{tmp_path / 'x.db'}").epoch(rows((1, 1, "a")))
    sink = SqlSink(f"sqlite:///file:{tmp_path / 'x.db'}?mode=ro&uri=true", "t")
    with pytest.raises(ConfigError, match="readonly database"):
        sink.open("another", rows((1, 1, "a")).schema)
