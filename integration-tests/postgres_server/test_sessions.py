"""The Postgres sink's sessions: roles, secrets, waits that end, connections that are used again."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.calls import BATCH, SCHEMA, Ask, decided, merge, prepared, task
from harness.errors import raises

from onefold.clients.postgres import sessions as pool
from onefold.core.contract import Binding, LedgerEntry, SinkWriter
from onefold.core.errors import ConfigError, Retriable, SchemaMismatch
from onefold.core.positions import Positions
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping

pytestmark = pytest.mark.servers


def _with(url: str, **changes: str) -> str:
    return psycopg.conninfo.make_conninfo(url, **changes)


@pytest.fixture
def role(ask: Ask) -> Iterator[str]:
    name = f"role_{uuid.uuid4().hex[:8]}"
    ask(f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
    yield name
    for gid in ask.gids():
        ask(f"ROLLBACK PREPARED '{gid}'")
    ask(f"DROP OWNED BY {name} CASCADE")
    ask(f"DROP ROLE {name}")


def test_missing_permissions_are_told_with_the_grant_that_helps(postgres_url: str, ask: Ask, role: str) -> None:
    limited = _with(postgres_url, user=role, password="hunter2")
    with raises(ConfigError, "ledger-permission", f"{role}"):
        PostgresSink(limited, "t").recover("p")
    ask(f"CREATE SCHEMA onefold_sinks AUTHORIZATION {role}")
    with raises(ConfigError, "create-permission", '"public"'):
        PostgresSink(limited, "t").open("p", SCHEMA)
    ask("CREATE TABLE t (id bigint, name text)")
    with raises(ConfigError, "table-permission", '"public"', '"t"') as caught:
        PostgresSink(limited, "t").open("p", SCHEMA)
    assert "hunter2" not in str(caught.value)
    ask(f"GRANT INSERT ON t TO {role}")
    sink = PostgresSink(limited, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    committer.commit(decided(one), [one])
    assert ask.ids() == [1, 2, 3]


def test_a_ledger_schema_that_would_hide_the_users_own_tables_is_refused(postgres_url: str, ask: Ask) -> None:
    (user,) = ask("SELECT current_user")[0]
    with raises(ConfigError, "schema-named-as-role"):
        PostgresSink(postgres_url, "t", ledger=user).recover("p")
    PostgresSink(postgres_url, "t").open("p", SCHEMA)
    assert ask("SELECT to_regclass('public.t') IS NOT NULL") == [(True,)]


def test_a_transaction_of_another_role_is_no_damage(postgres_url: str, ask: Ask, role: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    sink.open("p", SCHEMA)
    one = prepared(sink)
    ask(f"GRANT USAGE ON SCHEMA onefold_sinks TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA onefold_sinks TO {role}")
    other = PostgresSink(_with(postgres_url, user=role, password="hunter2"), "t", delivery="two_phase").recover("p")
    with raises(ConfigError, "transaction-of-another-role"):
        other.verify([one])
    with raises(ConfigError, "transaction-of-another-role"):
        other.commit(decided(one), [one])
    other.abort([one])  # no manifest names it: it is left alone
    assert other.leftovers(9) == []
    assert ask.gids() == [one.handle]


def test_a_transaction_of_another_database_is_no_damage(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    sink.open("p", SCHEMA)
    one = prepared(sink)
    name = f"other_{uuid.uuid4().hex[:8]}"
    ask(f"CREATE DATABASE {name}")
    other = PostgresSink(_with(postgres_url, dbname=name), "t", delivery="two_phase").recover("p")
    with raises(ConfigError, "transaction-of-another-database"):
        other.commit(decided(one), [one])
    assert other.leftovers(9) == []
    other.close()
    ask(f"DROP DATABASE {name} WITH (FORCE)")
    assert ask.gids() == [one.handle]


def test_no_text_shows_the_password(postgres_url: str) -> None:
    sink = PostgresSink(_with(postgres_url, password="hunter2", dbname="no_such_database"), "t")
    assert "hunter2" not in repr(sink)
    assert "hunter2" not in repr(sink._settings)
    with raises(ConfigError, "postgres-connection-refused") as caught:
        sink.recover("p")
    assert "hunter2" not in str(caught.value)
    with raises(ConfigError, "url-unreadable") as caught:
        PostgresSink("postgresql://u:hunter2 x@h:bad", "t")
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_down_is_worth_another_try() -> None:
    with raises(Retriable, "postgres-unreachable"):
        PostgresSink("postgresql://u:hunter2@127.0.0.1:1/d", "t").recover("p")


def test_a_wait_for_a_lock_ends_and_names_the_holder(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase", lock_timeout_s=0.2)
    sink.open("p", SCHEMA)
    ask("BEGIN; LOCK t IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'the orphan'")
    writer = sink.writer(task())
    with raises(Retriable, "lock-timeout", "'the orphan'"):
        _finish(writer)
    ask("ROLLBACK PREPARED 'the orphan'")
    with psycopg.connect(postgres_url, application_name="someone") as holder:
        holder.execute("LOCK t IN ACCESS EXCLUSIVE MODE")
        with raises(Retriable, "lock-timeout", f"{holder.info.backend_pid}"):
            _finish(sink.writer(task()))
    _finish(sink.writer(task()))


def _finish(writer: SinkWriter) -> None:
    writer.write(BATCH)
    writer.prepare()


def test_a_merge_does_not_wait_for_ever_either(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged", lock_timeout_s=0.2)
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    ask("BEGIN; LOCK t IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'the orphan'")
    with raises(Retriable, "lock-timeout", "'the orphan'"):
        merge(sink, committer, one)
    ask("ROLLBACK PREPARED 'the orphan'")
    merge(sink, committer, one)
    assert ask.ids() == [1, 2, 3]


def test_slots_that_are_used_up_are_worth_another_try_and_leave_nothing(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    slots = int(ask("SHOW max_prepared_transactions")[0][0])
    free = slots - ask("SELECT count(*) FROM pg_prepared_xacts")[0][0]
    taken = [prepared(sink) for _ in range(free)]
    with raises(Retriable, "prepared-transactions-exhausted"):
        prepared(sink)
    assert sorted(c.handle for c in taken) == ask.gids()
    again = PostgresSink(postgres_url, "t", delivery="two_phase")
    again.open("p", SCHEMA)
    assert again.writers_max() == 1
    committer.abort(taken)
    assert ask.gids() == []


def test_an_opened_sink_pickles_without_connections(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t")
    committer = sink.open("p", SCHEMA)
    copy = pickle.loads(pickle.dumps(sink))
    one = prepared(copy)
    committer.commit(decided(one), [one])
    assert ask.ids() == [1, 2, 3]


def test_a_writer_reuses_its_process_connection_and_survives_losing_it(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    mine = "SELECT pid FROM pg_stat_activity WHERE application_name = 'onefold p' AND datname = current_database()"
    work = [prepared(sink) for _ in range(3)]
    assert len(ask(mine)) == 1
    ask(mine.replace("SELECT pid", "SELECT pg_terminate_backend(pid, 5000)"))
    work.append(prepared(sink))
    committer.abort(work)
    assert ask.gids() == []


@pytest.mark.slow
def test_a_forked_child_leaves_its_parents_connections_alone(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    code = textwrap.dedent("""
        import os, pickle, sys
        sink, tasks, batch = pickle.loads(sys.stdin.buffer.read())
        def run(task):
            writer = sink.writer(task); writer.write(batch); writer.prepare()
        run(tasks[0])
        child = os.fork()
        run(tasks[1] if child else tasks[2])
        if child:
            assert os.waitpid(child, 0)[1] == 0
            run(tasks[3])
    """)
    tasks = [task() for _ in range(4)]
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps((sink, tasks, BATCH)), check=True)
    assert len(ask.gids()) == 4
    committer.abort(committer.leftovers(1))


def test_transactions_are_durable_whatever_the_default_is(postgres_url: str, ask: Ask) -> None:
    from onefold.clients.postgres import sessions

    for default, effective in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        info = sessions.conninfo(_with(postgres_url, options=f"-c synchronous_commit={default}"), "p", 5)
        with sessions.borrow(info, "test") as session:
            session.begin(2.5, idle_s_max=3)
            assert session.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("3s",)
            assert session.execute("SHOW synchronous_commit").fetchone() == (effective,)
            assert session.execute("SHOW lock_timeout").fetchone() == ("2500ms",)
            assert session.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
            session.execute("ROLLBACK")
        sessions.close_idle(info)
    assert ask("SELECT 1") == [(1,)]


def test_a_driver_that_freezes_in_the_ledgers_transaction_keeps_the_row_for_half_of_the_lock_timeout(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, put = [], Bookkeeping._put

    def frozen(books: Bookkeeping, connection: pool.Connection, *rest: Any) -> None:
        limits.append(connection.execute("SHOW idle_in_transaction_session_timeout").fetchone())
        put(books, connection, *rest)

    monkeypatch.setattr(Bookkeeping, "_put", frozen)
    committer = PostgresSink(postgres_url, "t", lock_timeout_s=6).open("p", SCHEMA)
    committer.bind(Binding("store", 1))
    committer.write_ledger(LedgerEntry(1, 1, 1000, Positions(), "store"))
    assert limits == [("3s",)], "one message: there is nothing to freeze in"
    committer.bind(Binding("store", 2))
    committer.write_ledger(LedgerEntry(1, 2, 2000, Positions(), "store"))  # the same epoch anew, the long way
    assert limits == [("3s",)] * 3


def test_rows_of_other_columns_than_opened_are_refused(postgres_url: str) -> None:
    sink = PostgresSink(postgres_url, "t")
    sink.open("p", SCHEMA)
    writer = sink.writer(task())
    with raises(SchemaMismatch, "rows-of-another-schema"):
        writer.write(pa.record_batch({"id": pa.array([1]), "other": pa.array([1])}))
