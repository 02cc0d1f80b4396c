"""The Postgres source without Spark, on a real server: parts, snapshots, pushdown, and what goes wrong."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from harness.errors import raises

from onefold.core.errors import BadRecord, ConfigError, Retriable
from onefold.sources import PostgresSource
from onefold.sources.postgres import TablePart, plan, read

pytestmark = pytest.mark.servers


def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def rows_of(part: TablePart) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in read(part) for row in batch.to_pylist()]


def rows(source: PostgresSource) -> list[tuple[Any, ...]]:
    return [row for part in plan(source) for row in rows_of(part)]


@pytest.fixture
def big(postgres_url: str) -> str:
    """A database with the table `big`: 20,000 rows with holes in some 900 blocks."""
    sql(
        postgres_url,
        "CREATE TABLE big (gone int, id bigint, filler text DEFAULT repeat('x', 300))",
        "INSERT INTO big SELECT 0, i FROM generate_series(1, 24000) AS i",
        "DELETE FROM big WHERE id % 6 = 0",
        "ALTER TABLE big DROP gone",
    )
    return postgres_url


def test_ranges_of_blocks_are_all_rows_once_whatever_is_written_meanwhile(big: str) -> None:
    expected = sql(big, "SELECT id FROM big ORDER BY id")
    with PostgresSource(big, "big", columns=["id"]).frozen() as source:
        parts = [pickle.loads(pickle.dumps(part)) for part in plan(source)]
        assert len(parts) == 8
        first = rows_of(parts[0])
        sql(
            big,
            "UPDATE big SET id = -id",
            "DELETE FROM big WHERE id % 5 = 0",
            "INSERT INTO big VALUES (1)",
            "VACUUM big",
        )
        found = first + [row for part in parts[1:] for row in rows_of(part)]
        assert rows_of(parts[0]) == first  # a task that is tried again
    assert sorted(found) == expected
    assert all(rows_of(dataclasses.replace(part, snapshot=None)) for part in parts)


def test_while_a_snapshot_is_held_the_table_cannot_be_emptied_under_it(big: str) -> None:
    with PostgresSource(big, "big").frozen() as source:
        for statement in ("TRUNCATE big", "DROP TABLE big", "ALTER TABLE big ADD more int", "VACUUM FULL big"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                sql(big, "SET lock_timeout = 50", statement)
        assert len(rows(source)) == 20_000
    assert sql(big, "TRUNCATE big", "SELECT 1") == [(1,)]


def test_partitions_are_read_by_their_own_blocks_small_ones_together(postgres_url: str) -> None:
    sql(
        postgres_url,
        "CREATE TABLE parted (k int, id bigint, filler text DEFAULT repeat('x', 300)) PARTITION BY LIST (k)",
        "CREATE TABLE p1 PARTITION OF parted FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF parted FOR VALUES IN (2) PARTITION BY RANGE (id)",
        'CREATE TABLE "P 2a" PARTITION OF p2 FOR VALUES FROM (1) TO (100)',
        "CREATE TABLE p2b (filler text DEFAULT 'other', id bigint, k int)",  # columns in another order
        "ALTER TABLE p2 ATTACH PARTITION p2b FOR VALUES FROM (100) TO (1000)",
        "CREATE TABLE p_rest PARTITION OF parted DEFAULT",
        "INSERT INTO parted SELECT 1, i FROM generate_series(1, 20000) AS i",
        "INSERT INTO parted SELECT 2, i FROM generate_series(1, 999) AS i",
        "INSERT INTO parted VALUES (NULL, NULL, NULL), (7, 7, NULL)",
    )
    expected = sorted(sql(postgres_url, "SELECT id, k FROM parted"), key=str)
    with PostgresSource(postgres_url, "parted", columns=["id", "k"], splits=4).frozen() as source:
        parts = plan(source)
        assert 4 <= len(parts) <= 6
        assert sorted((row for part in parts for row in rows_of(part)), key=str) == expected

    # Whoever may read the table but not its partitions reads it through the table, and so does row security.
    sql(postgres_url, "CREATE ROLE reader LOGIN", "GRANT SELECT ON parted TO reader")
    try:
        reader = PostgresSource(_as("reader", postgres_url), "parted", columns=["id", "k"], snapshot="each")
        assert len(plan(reader)) == 1
        assert sorted(rows(reader), key=str) == expected
        sql(postgres_url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        assert len(plan(reader)) > 1
        sql(postgres_url, "CREATE POLICY ones ON parted USING (k = 1)", "ALTER TABLE parted ENABLE ROW LEVEL SECURITY")
        assert len(rows(reader)) == 20_000
    finally:
        sql(postgres_url, "DROP OWNED BY reader", "DROP ROLE reader")


@pytest.mark.slow
def test_views_queries_and_materialized_views(big: str) -> None:
    sql(big, "CREATE VIEW seen AS SELECT id FROM big", "CREATE MATERIALIZED VIEW kept AS SELECT * FROM big")
    sources = {
        "view": (PostgresSource(big, "seen"), 1),
        "query": (PostgresSource(big, query="SELECT id FROM big -- all of it\n;"), 1),
        "query by key": (PostgresSource(big, query="SELECT id FROM big", split_by="id", splits=3), 3),
        "materialized": (PostgresSource(big, "kept", columns=["id"], splits=2), 2),
    }
    for name, (source, count) in sources.items():
        with source.frozen() as frozen:
            assert len(plan(frozen)) == count, name
            assert len(rows(frozen)) == len(set(rows(frozen))) == 20_000, name


KEYS = {
    "smallint": ["-32768", "32767", "0", "1", "NULL", "NULL"],
    "integer": ["1", "1", "1", "NULL"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "-1", "0", "NULL"],
    "date": ["'-infinity'", "'infinity'", "'2020-01-01'", "'2020-03-01'", "'4713-01-01 BC'", "NULL"],
    "timestamp": ["'-infinity'", "'infinity'", "'2020-01-01'", "'2020-01-01 00:00:00.1'", "'294276-01-01'", "NULL"],
    "timestamptz": ["'infinity'", "'2020-01-01 00:00+05'", "'2020-01-01 00:00:00.5Z'", "'1900-01-01Z'", "NULL"],
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_ranges_of_a_key_are_all_rows_once_nulls_and_infinities_too(postgres_url: str, kind: str) -> None:
    values = ", ".join(f"({i}, CAST({value} AS {kind}))" for i, value in enumerate(KEYS[kind]))
    sql(postgres_url, f'CREATE TABLE t (id int, "Key" {kind})', f"INSERT INTO t VALUES {values}")
    source = PostgresSource(postgres_url, "t", columns=["id"], split_by="Key", splits=5, snapshot="each")
    parts = plan(source)
    found = [row for part in parts for row in rows_of(part)]
    assert sorted(found) == [(i,) for i in range(len(KEYS[kind]))]
    assert len(parts) > 1 or kind == "integer"
    assert rows(dataclasses.replace(source, where='"Key" IS NULL AND id < 0')) == []


def test_columns_and_conditions_are_postgres_s_own(postgres_url: str) -> None:
    sql(
        postgres_url,
        'CREATE SCHEMA "odd.schema"',
        'CREATE TABLE "odd.schema"."Select" ("order" int, "a ""b"", c" text, n int)',
        """INSERT INTO "odd.schema"."Select" VALUES (1, 'x', 1), (2, 'y', 2), (3, NULL, 3)""",
    )
    columns = ['a "b", c', "order"]
    where = "n % 10 > 1 OR n::text LIKE '%z' -- and not a comment's end"
    source = PostgresSource(postgres_url, '"odd.schema".Select', columns=columns, where=where, snapshot="each")
    assert rows(source) == [("y", 2), (None, 3)]
    assert PostgresSource.from_options(source.options()) == source
    assert "postgresql" not in repr(source)


def _as(user: str, url: str, password: str = "") -> str:
    return url.replace("//onefold@", f"//{user}{':' if password else ''}{password}@")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"table": "nope"}, "there is no table nope in that database"),
    ({"table": "a.b.c"}, "must be a table's name or schema.table"),
    ({"table": "big_id"}, "big_id is no table or view"),
    ({"table": "big", "columns": ["ID"]}, "has no column 'ID'; it has 'id': case matters"),
    ({"table": "big", "columns": ["nr"]}, "has no column 'nr'; it has id, filler"),
    ({"table": "big", "split_by": "filler"}, "split_by='filler': table big has it as text"),
    ({"table": "big", "where": "nr > 1"}, 'column "nr" does not exist'),
    ({"table": "big", "where": "id >"}, "syntax error"),
    ({"query": "SELECT 1 AS a, 2 AS a"}, "each name once; it has a, a"),
    ({"query": "SELECT id FROM big", "columns": ["nr"]}, 'column "nr" does not exist'),
    ({"query": "DELETE FROM big RETURNING id"}, "syntax error"),
]


@pytest.mark.parametrize(("what", "message"), WRONG, ids=lambda x: str(x)[:50])
def test_what_cannot_be_read_is_a_clear_error_before_anything_is(big: str, what: dict[str, Any], message: str) -> None:
    sql(big, "CREATE INDEX big_id ON big (id)")
    with pytest.raises(ConfigError) as caught:
        plan(PostgresSource(big, **what))
    assert message in str(caught.value)


def test_no_permission_says_what_to_grant_and_column_grants_are_enough(big: str) -> None:
    sql(big, "CREATE ROLE visitor LOGIN")
    source = PostgresSource(_as("visitor", big), "big", columns=["id"])
    try:
        with raises(ConfigError, "postgres-refuses"):
            plan(source)
        sql(big, "GRANT SELECT (id) ON big TO visitor")
        with source.frozen() as frozen:
            assert len(rows(frozen)) == 20_000
        with raises(ConfigError, "postgres-refuses"):
            plan(dataclasses.replace(source, columns=None))
    finally:
        sql(big, "DROP OWNED BY visitor", "DROP ROLE visitor")


@pytest.fixture
def locked(postgres_url: str) -> Iterator[str]:
    """A role that the server asks for its password: 'right'."""
    sql(postgres_url, "CREATE ROLE locked LOGIN PASSWORD 'right'")
    ((path,),) = sql(postgres_url, "SHOW hba_file")
    ((before,),) = sql(postgres_url, "SELECT pg_read_file(current_setting('hba_file'))")
    ask = "host all locked all scram-sha-256"
    write = "COPY (SELECT unnest(string_to_array(%s, chr(10)))) TO '{}'"
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def put(text: str) -> None:
            statement = psycopg.sql.SQL(write.replace("%s", "{}").replace("'{}'", "{}"))
            connection.execute(statement.format(psycopg.sql.Literal(text), psycopg.sql.Literal(path)))
            connection.execute("SELECT pg_reload_conf()")
            time.sleep(0.2)

        put(f"{ask}\n{before}")
        yield postgres_url
        put(before)
        connection.execute("DROP ROLE locked")


def test_a_wrong_password_or_address_is_told_from_a_server_that_is_away_and_never_shown(locked: str) -> None:
    assert rows(PostgresSource(_as("locked", locked, "right"), query="SELECT 1 AS one")) == [(1,)]
    with raises(ConfigError, "postgres-connection-refused") as caught:
        plan(PostgresSource(_as("locked", locked, "wr0ng"), "big"))
    assert "wr0ng" not in str(caught.value)
    (part,) = plan(PostgresSource(locked, query="SELECT 1 AS one"))
    refused = dataclasses.replace(part, conninfo=part.conninfo.replace("user=onefold", "user=locked password=wr0ng"))
    with raises(ConfigError, "postgres-connection-refused") as caught:
        rows_of(refused)
    assert "wr0ng" not in str(caught.value)
    with raises(ConfigError, "url-unreadable") as caught:
        plan(PostgresSource("postgresql://a:wr0ng%%@localhost/x", "t"))
    assert "wr0ng" not in str(caught.value)
    with raises(Retriable, "postgres-unreachable"):
        plan(PostgresSource("postgresql://x@127.0.0.1:1/x", "t"))


# Some 60 MB: more than all the buffers between the server and us.
LONG = "SELECT i::int AS i, repeat('x', 1000) AS filler FROM generate_series(1, 60000) AS i"


def test_a_limit_on_temporary_files_is_a_setting_to_raise(postgres_url: str) -> None:
    little = f"{postgres_url}?options=-c%20work_mem%3D64kB%20-c%20temp_file_limit%3D1024"
    (part,) = plan(PostgresSource(little, query=f"{LONG} ORDER BY -i"))
    with raises(ConfigError, "postgres-refuses"):
        rows_of(part)


def test_a_connection_that_dies_in_the_middle_fails_the_part_which_can_be_read_again(postgres_url: str) -> None:
    with PostgresSource(postgres_url, query=LONG).frozen() as source:
        (part,) = plan(source)
        batches = read(part)
        next(batches)
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onefold read'"
        assert sql(postgres_url, f"{kill} AND query LIKE 'COPY%'") == [(True,)]
        with raises(Retriable, "postgres-connection-lost"):
            list(batches)
        assert sum(batch.num_rows for batch in read(part)) == 60_000


def test_a_part_that_is_given_up_leaves_nothing_running(postgres_url: str) -> None:
    (part,) = plan(PostgresSource(postgres_url, query=LONG))
    batches = read(part)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    active = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onefold read'"
    for _ in range(100):
        if sql(postgres_url, active) == [(0,)]:
            break
        time.sleep(0.05)
    assert sql(postgres_url, active) == [(0,)]


def test_after_the_server_was_killed_no_part_is_read_from_another_snapshot(postgres_server: Any, big: str) -> None:
    with PostgresSource(big, "big").frozen() as source:
        parts = plan(source)
        assert rows_of(parts[0])
        postgres_server.kill()
        try:
            with raises(Retriable, "postgres-unreachable"):
                rows_of(parts[1])
        finally:
            postgres_server.start()
        with raises(Retriable, "snapshot-not-held"):
            rows_of(parts[1])


def test_a_snapshot_ends_with_its_block_or_after_hold_s_and_then_parts_refuse(big: str) -> None:
    with PostgresSource(big, "big").frozen() as source:
        part = plan(source)[0]
    with raises(Retriable, "snapshot-not-held"):
        rows_of(part)
    with PostgresSource(big, "big", hold_s=0.2).frozen() as source:
        part = plan(source)[0]
        time.sleep(0.6)
        with raises(Retriable, "snapshot-not-held"):
            rows_of(part)
    with raises(Retriable, "snapshot-not-held"):
        rows_of(dataclasses.replace(part, snapshot="00000003-0000001B-1"))


def test_the_same_snapshot_id_of_another_server_is_not_taken_for_ours(big: str) -> None:
    with PostgresSource(big, "big").frozen() as source:
        part = plan(source)[0]
        number, _, started = source.snapshot.partition("@")
        assert rows_of(dataclasses.replace(part, snapshot=number))  # somebody's own
        with raises(Retriable, "snapshot-not-held"):
            rows_of(dataclasses.replace(part, snapshot=f"{number}@{int(started) + 1}"))


def test_the_timeouts_are_ours_and_not_the_roles(postgres_url: str) -> None:
    sql(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET statement_timeout = 100")
    slow = PostgresSource(postgres_url, query="SELECT pg_sleep(0.3)::text AS slept")
    assert rows(slow) == [("",)]
    with raises(Retriable, "postgres-unavailable"):
        rows(dataclasses.replace(slow, statement_timeout_s=0.15))


def test_a_lock_of_somebody_else_is_waited_for_no_longer_than_lock_timeout_s(big: str) -> None:
    source = PostgresSource(big, "big", lock_timeout_s=0.2)
    with psycopg.connect(big) as other:
        other.execute("LOCK TABLE big")
        for attempt in (lambda: plan(source), lambda: source.frozen().__enter__()):
            with raises(Retriable, "lock-timeout", "AccessExclusiveLock by pid"):
                attempt()


def test_a_table_that_changed_since_it_was_planned_is_not_read_as_if_it_had_not(big: str) -> None:
    source = PostgresSource(big, "big", columns=["id"], snapshot="each")
    part = plan(source)[0]
    sql(big, "ALTER TABLE big ALTER id TYPE text")
    with raises(ConfigError, "table-altered-while-read"):
        rows_of(part)
    sql(big, "DROP TABLE big")
    with raises(ConfigError, "postgres-refuses"):
        rows_of(part)


def test_a_value_that_fails_in_the_middle_fails_the_part(postgres_url: str) -> None:
    query = "SELECT 100 / (900000 - i) AS n FROM generate_series(1, 1000000) AS i"
    (part,) = plan(PostgresSource(postgres_url, query=query))
    with raises(BadRecord, "query-value-error"):
        list(itertools.chain(read(part)))


def test_texts_are_utf8_whatever_the_databases_encoding_is(postgres_url: str) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        name = f"enc_{encoding.lower()}"
        sql(
            postgres_url,
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0",
        )
    base = postgres_url.rpartition("/")[0]
    try:
        sql(f"{base}/enc_latin1", "CREATE TABLE t AS SELECT chr(233) AS c")
        assert rows(PostgresSource(f"{base}/enc_latin1", "t")) == [("é",)]
        sql(f"{base}/enc_sql_ascii", "CREATE TABLE t AS SELECT chr(233) AS c")
        with raises(BadRecord, "query-value-error"):
            rows(PostgresSource(f"{base}/enc_sql_ascii", "t"))
    finally:
        for encoding in ("latin1", "sql_ascii"):
            sql(postgres_url, f"DROP DATABASE enc_{encoding} WITH (FORCE)")
