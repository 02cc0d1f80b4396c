"""PostgresSink(evolve=True): the table follows the rows, with a record of it, or nothing happens to it."""

# ruff: noqa: E501 - one line for each widening
from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.calls import DELIVERIES, Ask
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.tables.evolving import EVOLVED, NEW, OLD, D, Sql, columns, evolutions, evolving

from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers


@pytest.fixture
def sql(ask: Ask) -> Sql:
    return ask


@pytest.fixture(params=DELIVERIES)
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# what it does


def test_the_table_follows_the_rows_and_every_value_stays(postgres_url: str, sql: Sql, delivery: str) -> None:
    with Epochs(evolving(postgres_url, delivery=delivery), OLD.schema) as life:
        life.run(OLD, OLD)
        assert evolutions(sql) == []
    with Epochs(evolving(postgres_url, delivery=delivery), NEW.schema) as life:
        life.run(NEW)
        life.run(NEW)
        life.open(OLD.schema)  # narrower rows: nothing to do
        life.run(OLD)
    assert columns(sql) == EVOLVED
    old, new = [(1, "a", None, None), (2, None, None, None)], [(2**40, "c", D("1.50"), ["x"]), (2**41, "d", None, None)]
    assert sorted(sql("SELECT * FROM t"), key=str) == sorted(old * 3 + new * 2, key=str)
    statement = (
        'ALTER TABLE "public"."t" ALTER COLUMN "id" TYPE bigint, ADD COLUMN "Group" numeric(8,2), '
        'ADD COLUMN "tags" text[]'
    )
    assert evolutions(sql) == [("p", "t", statement, 1, 2, True)]


def test_without_it_the_same_rows_are_refused_with_both_schemas(postgres_url: str, sql: Sql) -> None:
    PostgresSink(postgres_url, "t").open("p", OLD.schema)
    with pytest.raises(SchemaMismatch) as caught:
        PostgresSink(postgres_url, "t").open("p", NEW.schema)
    alter = 'ALTER TABLE "public"."t"'
    assert caught.value.message.splitlines() == [
        "the rows do not fit into table public.t:",
        "    column  the rows have       the table has",
        "  ! id      int64               integer        the table's cannot take every such value: cast the rows' column, "
        f'or {alter} ALTER COLUMN "id" TYPE bigint (evolve=True does it)',
        "    name    string              text",
        f'  ! Group   decimal128(8, 2)    -              the table has no such column: {alter} ADD COLUMN "Group" '
        "numeric(8,2) (evolve=True does it), or leave it out",
        f'  ! tags    list<item: string>  -              the table has no such column: {alter} ADD COLUMN "tags" text[] '
        "(evolve=True does it), or leave it out",
    ]
    assert columns(sql) == [("id", "integer", False), ("name", "text", False)]


# declared before, what is there, the rows' type, a value, the type that the column gets, whether Postgres rewrites
WIDENINGS: list[tuple[str, str, pa.DataType, Any, str, bool]] = [
    ("smallint", "-32768", pa.int32(), 2**31 - 1, "integer", True),
    ("smallint", "32767", pa.int64(), 2**63 - 1, "bigint", True),
    ("integer", "-2147483648", pa.int64(), 2**63 - 1, "bigint", True),
    ("integer", "2147483647", pa.decimal128(4, 2), D("10.25"), "numeric(12,2)", True),
    ("bigint", "-9223372036854775808", pa.uint64(), 2**64 - 1, "numeric(20,0)", True),
    ("real", "0.1", pa.float64(), 0.1, "double precision", True),
    ("numeric(4,2)", "99.99", pa.decimal128(6, 2), D("9999.99"), "numeric(6,2)", False),
    ("numeric(4,2)", "99.99", pa.decimal128(5, 3), D("99.999"), "numeric(5,3)", True),
    ("numeric(4,2)", "'NaN'", pa.int32(), 2**31 - 1, "numeric(12,2)", False),
    ("numeric(3,-2)", "12300", pa.decimal128(6, 2), D("9999.99"), "numeric(7,2)", True),
    ("date", "'infinity'", pa.timestamp("us"), dt.datetime(2024, 2, 29, 23, 59, 59, 999999), "timestamp without time zone", True),
    ("timestamp(3)", "'2024-01-01 00:00:00.123'", pa.timestamp("us"), dt.datetime(2024, 2, 29, 23, 59, 59, 999999), "timestamp without time zone", False),
    ("timestamptz(0)", "'2024-01-01 00:00:00Z'", pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, 23, 59, 59, 999999, dt.UTC), "timestamp with time zone", False),
    ("time(0)", "'23:59:59'", pa.time64("us"), dt.time(0, 0, 0, 1), "time without time zone", False),
    ("interval(0)", "'1 mon 2 d'", pa.duration("us"), dt.timedelta(days=-1, microseconds=1), "interval", False),
    ("integer[]", "'{1,NULL}'", pa.list_(pa.int64()), [2**63 - 1, None], "bigint[]", True),
    ("numeric(4,2)[]", "'{1.25,NULL}'", pa.list_(pa.decimal128(6, 2)), [D("9999.99")], "numeric(6,2)[]", True),
    ("varchar(3)[]", "'{abc,NULL}'", pa.list_(pa.string()), ["abcd", None], "text[]", True),
    ("date[]", "'{2024-02-29,NULL}'", pa.list_(pa.timestamp("us")), [dt.datetime(2024, 2, 29, 1)], "timestamp without time zone[]", True),
]  # fmt: skip


def test_every_widening_keeps_what_is_there_and_takes_the_rows(postgres_url: str, sql: Sql, delivery: str) -> None:
    names = [f"c{number}" for number in range(len(WIDENINGS))]
    sql(f"CREATE TABLE t ({', '.join(f'{n} {w[0]}' for n, w in zip(names, WIDENINGS, strict=True))})")
    sql(f"INSERT INTO t VALUES ({', '.join(w[1] for w in WIDENINGS)}), ({', '.join('NULL' for _ in names)})")
    batch = pa.record_batch({n: pa.array([w[3]], w[2]) for n, w in zip(names, WIDENINGS, strict=True)})
    sink = evolving(postgres_url, delivery=delivery)
    with Epochs(sink, batch.schema) as life:
        life.run(batch)
    assert [c[1] for c in columns(sql)] == [w[4] for w in WIDENINGS]
    for name, (declared, there, _, value, wider, _) in zip(names, WIDENINGS, strict=True):
        before = f"CAST({there} AS {declared})"
        found = sql(
            f"""SELECT count(*) FILTER (WHERE {name} = {before}::{wider}), count(*) FILTER (WHERE {name} = %s),
                       count(*) FILTER (WHERE {name} IS NULL), {before}::{wider}::{declared} = {before} FROM t""",
            value,
        )
        assert found == [(1, 1, 1, True)], name
    assert len(evolutions(sql)) == 1


@pytest.mark.slow
def test_a_rewrite_is_announced_where_postgres_makes_one(
    postgres_url: str, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "onefold")
    for number, (declared, there, kind, _, wider, rewrites) in enumerate(WIDENINGS):
        table, what = f"t{number}", f"{declared} to {wider}"
        sql(f"CREATE TABLE {table} (c {declared}); INSERT INTO {table} VALUES ({there})")
        before = sql(f"SELECT pg_relation_filenode('{table}')")
        caplog.clear()
        evolving(postgres_url, table, delivery="two_phase").open("p", pa.schema([("c", kind)])).close()
        assert (sql(f"SELECT pg_relation_filenode('{table}')") != before) == rewrites, what
        assert (f"writes all of table public.{table} anew" in caplog.text) == rewrites, what
        assert "has evolved its table: ALTER TABLE" in caplog.text


def test_a_date_becomes_the_same_midnight_under_every_time_zone_and_goes_back(postgres_url: str, sql: Sql) -> None:
    dates = "'4713-01-01 BC', '0001-01-01', '1582-10-10', '2024-03-31', '294276-12-31', 'infinity', '-infinity'"
    sql(f"CREATE TABLE t (made date, d date); INSERT INTO t SELECT d, d FROM unnest(ARRAY[{dates}]::date[]) d")
    for number, zone in enumerate(("Pacific/Kiritimati", "America/New_York")):
        sql(f"CREATE TABLE t{number} AS SELECT * FROM t")
        url = psycopg.conninfo.make_conninfo(postgres_url, options=f"-c timezone={zone}")
        evolving(url, f"t{number}").open("p", pa.schema([("d", pa.timestamp("us"))])).close()
    assert sql("SELECT count(*) FROM t0 JOIN t1 USING (made, d) WHERE d::date = made AND d::text !~ '[1-9]:'") == [(7,)]
    sql("CREATE TABLE far (d date); INSERT INTO far VALUES ('294277-01-01')")
    with raises(SchemaMismatch, "table-mismatch"):
        evolving(postgres_url, "far").open("p", pa.schema([("d", pa.timestamp("us"))]))
    assert columns(sql, "far") == [("d", "date", False)]


def test_an_index_a_default_an_identity_and_a_collation_go_along(postgres_url: str, sql: Sql, delivery: str) -> None:
    sql(
        """CREATE TABLE t (id integer GENERATED BY DEFAULT AS IDENTITY, n integer DEFAULT 7,
                           words varchar(3)[] COLLATE "C" DEFAULT '{}');
           CREATE INDEX odd ON t (n) WHERE n > 5; INSERT INTO t (n) VALUES (6)"""
    )
    rows = pa.record_batch(
        {
            "id": pa.array([2**40]),
            "n": pa.array([2**41]),
            "words": pa.array([["long", "words"]]),
        }
    )
    with Epochs(evolving(postgres_url, delivery=delivery), rows.schema) as life:
        life.run(rows)
    sql("SELECT setval(pg_get_serial_sequence('t', 'id'), 1099511627776); INSERT INTO t DEFAULT VALUES")
    assert sql("SELECT * FROM t ORDER BY id, n") == [
        (1, 6, []),
        (2**40, 2**41, ["long", "words"]),
        (2**40 + 1, 7, []),
    ]
    assert sql(
        "SELECT attcollation::regcollation::text FROM pg_attribute WHERE attname = 'words' AND attrelid = 't'::regclass"
    ) == [('"C"',)]
    assert sql("SELECT indisvalid FROM pg_index WHERE indexrelid = 'odd'::regclass") == [(True,)]


def test_a_partitioned_table_evolves_with_all_of_its_partitions(postgres_url: str, sql: Sql, delivery: str) -> None:
    sql(
        """CREATE TABLE t (id integer, name text) PARTITION BY LIST (name);
           CREATE TABLE ta PARTITION OF t FOR VALUES IN ('a', 'c') PARTITION BY HASH (name);
           CREATE TABLE ta0 PARTITION OF ta FOR VALUES WITH (MODULUS 2, REMAINDER 0);
           CREATE TABLE ta1 PARTITION OF ta FOR VALUES WITH (MODULUS 2, REMAINDER 1);
           CREATE TABLE trest PARTITION OF t DEFAULT"""
    )
    with Epochs(evolving(postgres_url, delivery=delivery), OLD.schema) as life:
        life.run(OLD)
        life.open(NEW.schema)
        life.run(NEW)
    assert [columns(sql, table) for table in ("t", "ta", "ta0", "ta1", "trest")] == [EVOLVED] * 5
    assert sql("SELECT id FROM t ORDER BY id") == [(1,), (2,), (2**40,), (2**41,)]
    assert sql("SELECT count(*) FROM ta") == [(2,)]


# what it does not do


@pytest.mark.parametrize(
    ("declared", "rows", "code"),
    [
        ("id text", {"id": pa.int64()}, "table-mismatch"),
        ("id bigint", {"id": pa.float64()}, "table-mismatch"),
        ("id small", {"id": pa.int64()}, "table-mismatch"),
        ("id integer GENERATED ALWAYS AS IDENTITY", {"id": pa.int64()}, "table-mismatch"),
        ("id integer, must text NOT NULL", {"id": pa.int64()}, "table-mismatch"),
        ("id integer", {"id": pa.int64(), "ID": pa.int64()}, "table-mismatch"),
        ("id integer", {"id": pa.int64(), "nothing": pa.null()}, "table-mismatch"),
        ("id integer", {"id": pa.int64(), "wide": pa.decimal256(50, 0)}, "table-mismatch"),
        ("id integer", {"id": pa.int64(), "ü" * 32: pa.int64()}, "table-mismatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_column_that_cannot_be_made_to_fit_leaves_the_whole_table_alone(
    postgres_url: str, sql: Sql, declared: str, rows: dict[str, pa.DataType], code: str
) -> None:
    sql(f"CREATE DOMAIN small AS integer CHECK (value < 10); CREATE TABLE t ({declared}, grows integer)")
    before = columns(sql)
    with raises(SchemaMismatch, code) as caught:
        evolving(postgres_url).open("p", pa.schema({**rows, "grows": pa.int64(), "more": pa.int64()}))
    assert "evolve=True does it" in str(caught.value)  # the other two columns, which are shown as well
    assert columns(sql) == before
    assert evolutions(sql) == []


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("CREATE VIEW v AS SELECT id FROM t", "table-mismatch"),
        ("ALTER TABLE t ADD COLUMN twice integer GENERATED ALWAYS AS (id * 2) STORED", "table-mismatch"),
        ("DROP TABLE t; CREATE TABLE t (id integer, name text) PARTITION BY RANGE (id)", "table-mismatch"),
        ("DROP TABLE t; CREATE TABLE s (id integer, name text); CREATE TABLE t () INHERITS (s)", "table-mismatch"),
        ("CREATE TRIGGER tr BEFORE UPDATE OF id ON t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", "table-mismatch"),
        ("CREATE POLICY mine ON t USING (id = 1)", "table-mismatch"),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_what_postgres_refuses_to_alter_is_told_in_its_words_and_nothing_changes(
    postgres_url: str, sql: Sql, statement: str, code: str
) -> None:
    sql("CREATE TABLE t (id integer, name text)")
    sql(statement)
    before = columns(sql)
    with raises(SchemaMismatch, code) as caught:
        evolving(postgres_url).open("p", NEW.schema)
    assert "Nothing was changed" in str(caught.value)
    assert "the table has" in str(caught.value)
    assert (columns(sql), evolutions(sql)) == (before, [])


def test_a_view_grows_no_columns_and_one_on_the_table_hinders_no_new_ones(postgres_url: str, sql: Sql) -> None:
    sql("CREATE TABLE t (id bigint, name text); CREATE VIEW v AS SELECT * FROM t")
    with raises(SchemaMismatch, "table-mismatch"):
        evolving(postgres_url, "v").open("p", NEW.schema)
    evolving(postgres_url).open("p", NEW.schema).close()
    assert columns(sql) == EVOLVED
    assert columns(sql, "v") == EVOLVED[:2]


def test_only_the_owner_may_and_the_error_names_the_owner_and_the_statement(postgres_url: str, sql: Sql) -> None:
    owner, writer = (f"role_{uuid.uuid4().hex[:8]}" for _ in range(2))
    url = psycopg.conninfo.make_conninfo(postgres_url, user=writer, password="hunter2")
    sql(f"CREATE ROLE {owner}; CREATE ROLE {writer} LOGIN PASSWORD 'hunter2'")
    try:
        sql(f"CREATE SCHEMA onefold_sinks AUTHORIZATION {writer}; GRANT ALL ON SCHEMA public TO {owner}, {writer}")
        sql(f"SET ROLE {owner}; CREATE TABLE t (id integer, name text); GRANT INSERT ON t TO {writer}")
        evolving(url, "public.t").open("p", OLD.schema).close()  # nothing to alter, nothing to own
        with raises(ConfigError, "table-not-owned", f"{owner}") as caught:
            evolving(url, "public.t").open("p", NEW.schema)
        assert 'ALTER TABLE "public"."t" ALTER COLUMN "id" TYPE bigint' in str(caught.value)
        sql(f"GRANT {owner} TO {writer}")
        evolving(url, "public.t").open("p", NEW.schema).close()
        assert columns(sql) == EVOLVED
        assert sql("SELECT role FROM onefold_sinks.onefold_evolutions") == [(writer,)]
    finally:
        sql(f"DROP OWNED BY {writer}, {owner} CASCADE; DROP ROLE {writer}, {owner}")


def test_remembered_deletions_follow_the_key_and_the_order_of_their_table(
    postgres_url: str, sql: Sql, delivery: str
) -> None:
    sql("CREATE TABLE t (id integer PRIMARY KEY, version integer, name text)")
    settings: dict[str, Any] = {"mode": "upsert", "key": "id", "order": "version", "delete_when_null": "name"}

    def rows(kind: pa.DataType, *versions: tuple[int, int, str | None]) -> pa.RecordBatch:
        ids, orders, names = zip(*versions, strict=True)
        return pa.record_batch({"id": pa.array(ids, kind), "version": pa.array(orders, kind), "name": pa.array(names)})

    old = rows(pa.int32(), (1, 1, "a"), (2, 5, None))
    new = rows(pa.int64(), (2, 4, "late"), (1, 2**40, None), (2**40, 1, "c"))
    for batch in (old, new):
        with Epochs(evolving(postgres_url, delivery=delivery, **settings), batch.schema) as life:
            life.run(batch)
    assert sql("SELECT * FROM t") == [(2**40, 1, "c")]
    (deleted,) = sql("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_deleted_' AND relkind = 'r'")
    assert sql(f"SELECT id, version FROM {deleted[0]} ORDER BY 1") == [(1, 2**40), (2, 5)]
    clauses = 'ALTER COLUMN "id" TYPE bigint, ALTER COLUMN "version" TYPE bigint'
    assert [row[2].split(" ", 3)[3] for row in evolutions(sql)] == [clauses, clauses]
