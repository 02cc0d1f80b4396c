"""PostgresSink(evolve=True) beside others at the same table: who waits, comes at once, dies, or was there before."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest
from harness.calls import DELIVERIES, Ask, eventually
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.support import CrashError
from harness.tables.evolving import EVOLVED, NEW, OLD, Sql, columns, evolutions, evolving

from onefold.clients.postgres import sessions
from onefold.core.contract import SinkKind
from onefold.core.errors import Retriable, SchemaMismatch
from onefold.core.protocol import coordinator
from onefold.sinks import PostgresSink
from onefold.sinks.postgres import writer
from onefold.sinks.postgres.copy.loading import StreamingLoad

pytestmark = pytest.mark.servers


@pytest.fixture
def sql(ask: Ask) -> Sql:
    return ask


@pytest.fixture(params=DELIVERIES)
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_wait_for_the_table_ends_and_names_who_holds_it(postgres_url: str, sql: Sql) -> None:
    sql("CREATE TABLE t (id integer, name text)")
    sink = evolving(postgres_url, lock_timeout_s=0.2)
    sql("BEGIN; INSERT INTO t VALUES (0); PREPARE TRANSACTION 'the orphan'")
    with raises(Retriable, "lock-timeout", "'the orphan'"):
        sink.open("p", NEW.schema)
    sql("ROLLBACK PREPARED 'the orphan'")
    with psycopg.connect(postgres_url, application_name="someone") as holder:
        holder.execute("LOCK t IN ROW EXCLUSIVE MODE")
        with raises(Retriable, "lock-timeout", f"{holder.info.backend_pid}"):
            sink.open("p", NEW.schema)
    assert evolutions(sql) == []
    sink.open("p", NEW.schema).close()
    assert columns(sql) == EVOLVED


def test_what_an_epoch_left_prepared_does_not_hinder_its_own_pipeline(
    postgres_url: str, sql: Sql, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decided, and its driver died: recovery finishes it, and lets go of its locks, before anything opens."""
    sink = evolving(postgres_url, delivery=delivery, lock_timeout_s=0.5)
    with Epochs(sink, OLD.schema) as life:

        def crash(name: str) -> None:
            if name == "after:Decide":
                raise CrashError

        with monkeypatch.context() as context:
            context.setattr(coordinator, "failpoint", crash)
            with pytest.raises(CrashError):
                life.run(OLD, OLD)
    if delivery == "two_phase":
        with raises(Retriable, "lock-timeout"):
            evolving(postgres_url, lock_timeout_s=0.1).open("another", NEW.schema)
    with Epochs(sink, NEW.schema) as life:
        assert life.started.finished == 1
        life.run(NEW)
    assert sql("SELECT id FROM t ORDER BY id") == [(1,), (1,), (2,), (2,), (2**40,), (2**41,)]
    assert columns(sql) == EVOLVED


def opening(url: str, pipeline: str, *names: str) -> threading.Thread:
    """A driver, in a thread, that opens the sink for rows with a bigint `id` and the named text columns."""
    fields = [("id", pa.int64()), *((name, pa.string()) for name in names)]

    def run() -> None:
        evolving(url, lock_timeout_s=60).open(pipeline, pa.schema(fields)).close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def join(threads: list[threading.Thread]) -> None:
    """pytest turns an exception of a thread into the test's failure."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


WAITING = """SELECT count(*) FROM pg_locks WHERE NOT granted
             AND database IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))"""


def test_drivers_that_come_at_once_alter_the_table_once_for_each_change(postgres_url: str, sql: Sql) -> None:
    evolving(postgres_url).recover("any").close()
    sql("CREATE TABLE t (id integer)")
    with psycopg.connect(postgres_url) as holder:  # until all of them wait
        holder.execute("LOCK t IN ROW EXCLUSIVE MODE")
        several = [opening(postgres_url, f"p{n}", *names) for n, names in enumerate(["a", "a", "a", "ab"])]
        eventually(lambda: sql(WAITING) == [(4,)])
        holder.rollback()
        join(several)
    assert columns(sql) == [("id", "bigint", False), ("a", "text", False), ("b", "text", False)]
    statements = [row[2].removeprefix('ALTER TABLE "public"."t" ') for row in evolutions(sql)]
    clauses = sorted(clause for statement in statements for clause in statement.split(", "))
    assert clauses == ['ADD COLUMN "a" text', 'ADD COLUMN "b" text', 'ALTER COLUMN "id" TYPE bigint']


def test_drivers_that_come_at_once_make_a_missing_table_once(postgres_url: str, sql: Sql) -> None:
    evolving(postgres_url).recover("any").close()
    with psycopg.connect(postgres_url) as holder:
        holder.execute("LOCK pg_class IN SHARE MODE")  # CREATE TABLE waits there, when it has looked IF NOT EXISTS
        several = [opening(postgres_url, f"p{n}") for n in range(3)]
        eventually(lambda: sql(WAITING) == [(3,)])
        holder.rollback()
        join(several)
    assert columns(sql) == [("id", "bigint", False)]


_OPEN = textwrap.dedent("""
    import pyarrow as pa, sys
    from onefold.sinks import PostgresSink
    PostgresSink(sys.argv[1], "t", evolve=True).open("p", pa.schema([("id", pa.int64()), ("more", pa.string())]))
""")

_LOCKED = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode = 'AccessExclusiveLock'"


@pytest.mark.parametrize("place", ["evolve:altered", "evolve:recorded"])
def test_a_driver_killed_between_the_alteration_and_its_record_leaves_neither(
    postgres_url: str, sql: Sql, tmp_path: Path, place: str
) -> None:
    sql("CREATE TABLE t (id integer)")
    environment = {**os.environ, "ONEFOLD_FAILPOINT": place, "ONEFOLD_FAILPOINT_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", _OPEN, postgres_url], env=environment) as driver_process:
        try:
            eventually(lambda: any(tmp_path.iterdir()))
            assert sql(_LOCKED) == [(1,)]
        finally:
            driver_process.kill()
    eventually(lambda: sql(_LOCKED) == [(0,)])
    assert (columns(sql), evolutions(sql)) == ([("id", "integer", False)], [])
    join([opening(postgres_url, "p", "more")])
    assert columns(sql) == [("id", "bigint", False), ("more", "text", False)]
    assert [row[0] for row in evolutions(sql)] == ["p"]


def test_a_zombie_with_an_older_schema_does_the_live_driver_no_harm(postgres_url: str, sql: Sql, delivery: str) -> None:
    """It wakes up in `open`, where nothing fences it yet, just when the live driver's rows wait for the decision."""
    zombie = evolving(postgres_url, delivery=delivery)
    with Epochs(zombie, OLD.schema) as life:
        life.run(OLD)
    runs = []
    with Epochs(evolving(postgres_url, delivery=delivery), NEW.schema) as live:
        for _ in range(2):
            live.run(NEW, doing=lambda: runs.append(zombie.open("p", OLD.schema)))
    for committer in runs:
        committer.close()
    assert len(runs) == 2  # no run was lost
    assert columns(sql) == EVOLVED
    assert sql("SELECT count(*) FROM t") == [(6,)]


def test_a_stage_that_lost_a_column_with_its_type_is_made_anew(postgres_url: str, sql: Sql) -> None:
    rows = pa.record_batch({"id": pa.array([1]), "colour": pa.array(["red"])})
    colour = "CREATE TYPE colour AS ENUM ('red')"
    sql(f"{colour}; CREATE TABLE t (id bigint, colour colour)")
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    with Epochs(sink, rows.schema) as life:
        life.run(rows)
        sql(f"DROP TYPE colour CASCADE; {colour}; ALTER TABLE t ADD COLUMN colour colour")
        life.open(rows.schema)
        life.run(rows)
    assert sql("SELECT * FROM t") == [(1, None), (1, "red")]


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_another_pipeline_into_the_same_table_is_told_to_start_again_not_that_its_rows_are_bad(
    postgres_url: str, sql: Sql, delivery: str, on_error: Literal["fail", "dead_letter"]
) -> None:
    other = PostgresSink(postgres_url, "t", name="other", delivery=delivery, on_error=on_error)
    with Epochs(other, OLD.schema, pipeline="q") as life:
        life.run(OLD)
        evolving(postgres_url).open("p", NEW.schema).close()
        if other.guarantee().kind is SinkKind.LAST_RESOURCE:
            life.run(OLD)  # its stage is as it was, and the merge widens
        else:
            with raises(Retriable, "table-altered"):
                life.run(OLD)
            life.open(OLD.schema)
            life.run(OLD)
    assert sql("SELECT id FROM t ORDER BY id") == [(1,), (1,), (2,), (2,)]


def test_that_holds_for_arrays_which_name_the_type_of_their_elements(postgres_url: str, sql: Sql) -> None:
    old, new = (pa.record_batch({"tags": pa.array([[1]], pa.list_(kind))}) for kind in (pa.int32(), pa.int64()))
    with Epochs(PostgresSink(postgres_url, "t", delivery="two_phase"), old.schema, pipeline="q") as life:
        life.run(old)
        evolving(postgres_url).open("p", new.schema).close()
        with raises(Retriable, "table-altered"):
            life.run(old)
        life.open(old.schema)
        life.run(old)
    assert sql("SELECT * FROM t") == [([1],), ([1],)]


NARROWED = [
    (Decimal("0.25"), pa.decimal128(12, 2), "numeric(12,2)", "numeric(12,1)"),
    (1, pa.timestamp("us"), "timestamp", "timestamp(0)"),
    (2**60 + 1, pa.int64(), "bigint", "double precision"),
]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["two_phase", "staged", "dead_letter", "upsert"])
def test_a_column_altered_to_a_type_that_would_round_gets_no_values(postgres_url: str, sql: Sql, how: str) -> None:
    more: dict[str, Any] = {
        "dead_letter": {"delivery": "staged", "on_error": "dead_letter"},
        "upsert": {"delivery": "two_phase", "mode": "upsert", "key": "id", "order": "id2"},
    }.get(how, {"delivery": how})
    for value, kind, was, now in NARROWED:
        key = "PRIMARY KEY" if how == "upsert" else ""
        sql(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint {key}, id2 bigint, n {was})")
        rows = pa.record_batch({"id": [1], "id2": [1], "n": pa.array([value], kind)})
        with Epochs(PostgresSink(postgres_url, "t", **more), rows.schema, pipeline=now) as life:
            sql(f"ALTER TABLE t ALTER n TYPE {now}")
            with pytest.raises((Retriable, SchemaMismatch), match=r"was altered since|cannot take every such value"):
                life.run(rows)
            with pytest.raises(SchemaMismatch, match="cannot take every such value"):
                life.open(rows.schema)
            assert sql("SELECT * FROM t") == []
            sql(f"ALTER TABLE t ALTER n TYPE {was}")
        with Epochs(PostgresSink(postgres_url, "t", **more), rows.schema, pipeline=now) as life:
            life.run(rows)
            assert sql("SELECT count(*) FROM t WHERE n = %s", rows["n"][0].as_py()) == [(1,)]


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_a_column_altered_to_a_type_of_the_same_width_takes_no_bytes_of_the_old_one(
    postgres_url: str, sql: Sql, on_error: Literal["fail", "dead_letter"]
) -> None:
    rows = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    with Epochs(PostgresSink(postgres_url, "t", delivery="two_phase", on_error=on_error), rows.schema) as life:
        life.run(rows)
        sql("ALTER TABLE t ALTER n TYPE double precision")
        with raises(Retriable, "table-altered"):
            life.run(rows)
        with raises(SchemaMismatch, "table-mismatch"):
            life.open(rows.schema)
    assert sql("SELECT * FROM t") == [(1.0,), (2.0,)]


@pytest.mark.parametrize("is_undone_by_others", [False, True])
def test_that_holds_also_where_it_is_altered_between_the_first_look_and_the_copy(
    postgres_url: str, sql: Sql, monkeypatch: pytest.MonkeyPatch, is_undone_by_others: bool
) -> None:
    rows = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    with Epochs(PostgresSink(postgres_url, "t", delivery="two_phase"), rows.schema) as life:
        life.run(rows)

        def altered_first(*arguments: Any) -> StreamingLoad:
            sql("ALTER TABLE t ALTER n TYPE double precision")
            return StreamingLoad(*arguments)

        def undone_before(connection: sessions.Connection, statement: bytes) -> None:
            if is_undone_by_others and statement.startswith(b"ROLLBACK PREPARED"):
                sql(statement.decode())
            outside(connection, statement)

        outside = sessions.Connection.outside
        monkeypatch.setattr(sessions.Connection, "outside", undone_before)
        monkeypatch.setattr(writer, "StreamingLoad", altered_first)
        with raises(Retriable, "table-altered"):
            life.run(rows)
    assert sql("SELECT * FROM t") == [(1.0,), (2.0,)]
    assert sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
