"""Our own sinks and stores against the public conformance kit, on real servers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from check_stores import check_store
from harness.tables.sql_bench import staged_tables

from onefold.core.testing import check_sink
from onefold.sinks import PostgresSink, SqlSink

pytestmark = pytest.mark.servers
STEPS_MAX = 6  # within each call; the kit's default is more
MODES_STEPS_MAX = 1
SQL_STEPS_MAX = 1
STORE_CALLS = {"acquire", "freeze", "open_epoch", "decide", "complete", "damage", "accept_damage", "adopt"}
CALLS = {"write", "writer's abort", "prepare", "abort", "commit", "bind", "write_ledger", "open", "recover"}


class Ask:
    """The server's own view, over connections that the sink knows nothing of."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, query: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return [value for (value,) in connection.execute(query.encode())]

    def do(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def waiting(self) -> int:
        """Prepared transactions, staged rows, and attempts that are listed as staged."""
        stages = self("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_stage_' AND relkind = 'r'")
        staged = "".join(f" + (SELECT count(*) FROM {stage})" for stage in [*stages, "onefold_sinks.onefold_staged"])
        gids = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        return int(self(f"SELECT ({gids}){staged}")[0])


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["two_phase", "staged", "direct"])
def test_the_postgres_sink_keeps_its_promises(postgres_url: str, delivery: str) -> None:
    ask = Ask(postgres_url)
    report = check_sink(
        partial(PostgresSink, postgres_url, "t", delivery=delivery),
        rows=lambda: ask("SELECT id FROM t"),
        prepared=ask.waiting,
        make_sibling=partial(PostgresSink, postgres_url, "t", name="sibling", delivery=delivery),
        steps_max=STEPS_MAX,
    )
    print(f"\n{report}")
    assert report.strikes.keys() == (CALLS if delivery == "two_phase" else CALLS | {"merge"})


CHECKED = "CREATE TABLE t (id bigint {key}, version bigint, name text CHECK (name <> 'bad'))"
DEAD = "SELECT (\"row\"->>'id')::bigint AS id FROM onefold_sinks.onefold_dead_letters"


def rows_and_bad_ones(ids: Sequence[int]) -> pa.RecordBatch:
    names = ["bad" if i % 3 == 2 else "good" for i in ids]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "version": pa.array(ids, pa.int64()), "name": names})


def rows_deletions_and_bad_ones(ids: Sequence[int]) -> pa.RecordBatch:
    batch = rows_and_bad_ones(ids)
    return batch.append_column("gone", pa.array([i % 3 == 1 for i in ids], pa.bool_()))


@pytest.mark.slow
@pytest.mark.parametrize("delivery", [pytest.param("two_phase", marks=pytest.mark.soak), "staged"])
def test_upserts_with_deletions_and_dead_letters_keep_their_promises(postgres_url: str, delivery: str) -> None:
    """Every id shows as exactly one of the three effects: a row, a remembered deletion, a dead letter."""
    ask = Ask(postgres_url)
    ask.do(CHECKED.format(key="PRIMARY KEY"))
    settings = {"delivery": delivery, "mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone"}
    make = partial(PostgresSink, postgres_url, "t", on_error="dead_letter", source_position="id", **settings)

    def effects() -> list[int]:
        deleted = ask("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_deleted_' AND relkind = 'r'")
        assert len(deleted) <= 1, deleted
        shown = ask(" UNION ALL ".join(["SELECT id FROM t", DEAD, *(f"SELECT id FROM {name}" for name in deleted)]))
        assert not {i for i in ask("SELECT id FROM t") if i % 3} | {i for i in ask(DEAD) if i % 3 != 2}
        return shown

    report = check_sink(
        make,
        rows=effects,
        prepared=ask.waiting,
        make_batch=rows_deletions_and_bad_ones,
        make_sibling=partial(make, name="sibling"),
        steps_max=MODES_STEPS_MAX,
        moments=0,
    )
    print(f"\n{report}")
    assert report.strikes.keys() == (CALLS | {"merge"} if delivery == "staged" else CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["two_phase", pytest.param("staged", marks=pytest.mark.soak)])
def test_appends_with_dead_letters_keep_their_promises(postgres_url: str, delivery: str) -> None:
    """Here a row that is written twice shows twice."""
    ask = Ask(postgres_url)
    ask.do(CHECKED.format(key=""))
    make = partial(PostgresSink, postgres_url, "t", delivery=delivery, on_error="dead_letter")
    report = check_sink(
        make,
        rows=lambda: ask(f"SELECT id FROM t UNION ALL {DEAD}"),
        prepared=ask.waiting,
        make_batch=rows_and_bad_ones,
        make_sibling=partial(make, name="sibling"),
        steps_max=MODES_STEPS_MAX,
        moments=0,
    )
    print(f"\n{report}")
    assert report.strikes.keys() == (CALLS | {"merge"} if delivery == "staged" else CALLS)


def versions(ids: Sequence[int]) -> pa.RecordBatch:
    """Rows of an upsert: each its key's first version, and none that deletes."""
    names = [None if i % 3 == 0 else f"row '{i}'" for i in ids]
    columns = {"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}
    return pa.record_batch({**columns, "v": pa.array([1] * len(ids)), "gone": pa.array([False] * len(ids))})


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql_url", ["sqlite", "mariadb", pytest.param("postgres", marks=pytest.mark.soak)], indirect=True
)
def test_the_sql_sink_keeps_its_promises(sql_url: str) -> None:
    settings: dict[str, Any] = {"mode": "upsert", "key": ("id",), "order": ("v",), "delete_when_true": "gone"}
    sink = partial(SqlSink, sql_url, "t", **settings)
    engine = sa.create_engine(sink().store_url() or "")

    def ask(query: str) -> list[Any]:
        with engine.connect() as connection:
            return list(connection.scalars(sa.text(query)))

    def waiting() -> int:
        return sum(int(ask(f"SELECT count(*) FROM {name}")[0]) for name in staged_tables(engine))

    report = check_sink(
        sink,
        rows=lambda: ask("SELECT id FROM t"),
        prepared=waiting,
        make_batch=versions,
        make_sibling=partial(sink, name="sibling"),
        steps_max=SQL_STEPS_MAX,
        moments=0,
    )
    engine.dispose()
    print(f"\n{report}")
    assert report.strikes.keys() == CALLS | {"merge"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "steps"),
    [
        ("postgres_url", {"steps_max": STEPS_MAX}),
        pytest.param("mariadb_url", {"steps_max": SQL_STEPS_MAX, "moments": 0}, marks=pytest.mark.soak),
    ],
)
def test_the_checkpoint_store_keeps_its_promises(
    server: str, steps: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """On Postgres and MariaDB; core/tests has it on SQLite."""
    url = sa.make_url(request.getfixturevalue(server))
    url = url.set(drivername=url.drivername.replace("postgresql", "postgresql+psycopg"))
    report = check_store(url.render_as_string(hide_password=False), **steps)
    print(f"\n{report}")
    assert report.strikes.keys() == STORE_CALLS
