"""The Postgres sink's promises, one by one, asked of a real server: two-phase delivery, the ledger, crashes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.calls import BATCH, DELIVERIES, SCHEMA, Ask, decided, entry, eventually, merge, prepared, task
from harness.errors import raises
from harness.pipeline_drivers import Epochs, at_failpoint

from onefold.clients.postgres import sessions
from onefold.core.contract import CommittedPart, SinkKind
from onefold.core.errors import ConfigError, Damaged, Fenced, InDoubt, OnefoldError, OutOfResources, Retriable, WorkLost
from onefold.sinks import PostgresSink
from onefold.sinks.postgres import prepared as preparing

pytestmark = pytest.mark.servers


# two-phase


def test_prepared_rows_are_invisible_until_they_are_committed(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one, two = prepared(sink), prepared(sink)
    assert ask.gids() == sorted([one.handle, two.handle])
    assert one.handle.startswith("of/p/t/1/1/")
    assert (one.rows, one.kind) == (3, SinkKind.TWO_PHASE)
    assert one.bytes > 0
    assert ask.ids() == []
    committer.verify([one, two])
    committer.commit(decided(one, two), [one, two])
    assert ask.gids() == []
    assert ask.ids() == [1, 1, 2, 2, 3, 3]
    assert ask.parts() == [(1, 1, 1001, 3), (1, 1, 1001, 3)]


def test_many_transactions_are_committed_by_several_sessions_at_once(
    postgres_url: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    many = [prepared(sink) for _ in range(10)]
    ask(f"ROLLBACK PREPARED '{many[4].handle}'")
    ending, together = preparing.end, threading.Barrier(3)

    def at_once(connection: sessions.Connection, *told: Any) -> bool:
        if connection not in seen:
            seen.append(connection)
            together.wait(30)
        return ending(connection, *told)

    seen = list[sessions.Connection]()
    monkeypatch.setattr(preparing, "end", at_once)
    with raises(Damaged, "decided-work-gone", many[4].handle) as caught:
        committer.commit(decided(*many), many)
    assert all(one.handle not in str(caught.value) for one in many if one is not many[4])
    assert len(seen) == 3
    assert ask.gids() == []
    assert len(ask.ids()) == 9 * 3


def test_what_is_in_doubt_where_all_sessions_end_among_many_commits_a_second_commit_finishes(
    postgres_url: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    many = [prepared(sink) for _ in range(20)]

    def end_all() -> None:
        ask(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    struck = at_failpoint(monkeypatch, "postgres.commit_prepared", end_all)
    with raises(InDoubt, "commit-unanswered"):
        committer.commit(decided(*many), many)
    assert struck
    committer.commit(decided(*many), many)
    assert ask.gids() == [] and len(ask.ids()) == 20 * 3


def test_where_no_more_sessions_are_to_be_had_one_commits_all(
    postgres_url: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    many = [prepared(sink) for _ in range(9)]
    taking, taken = sessions.take, list[str]()

    def one(info: str, *told: str) -> sessions.Connection:
        taken.append(info)
        if len(taken) > 1:
            raise OutOfResources("postgres-connections-exhausted", "sorry, too many clients already")
        return taking(info, *told)

    monkeypatch.setattr(sessions, "take", one)
    committer.commit(decided(*many), many)
    assert len(taken) == 2
    assert ask.gids() == [] and len(ask.ids()) == 9 * 3


def test_a_commit_that_is_repeated_finds_it_done(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one, two = prepared(sink), prepared(sink)
    committer.commit(decided(one), [one])
    for _ in range(2):
        sink.recover("p").commit(decided(one, two), [one, two])
    assert len(ask.ids()) == 6
    committer.write_ledger(entry(epoch=1))
    committer.commit(decided(one, two), [one, two])
    committer.write_ledger(entry(epoch=2))
    assert ask.parts() == []
    committer.commit(decided(one, two), [one, two])
    assert len(ask.ids()) == 6


def test_a_decided_transaction_that_somebody_rolled_back_is_damage_with_evidence(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one, two = prepared(sink), prepared(sink)
    ask(f"ROLLBACK PREPARED '{one.handle}'")
    with raises(WorkLost, "prepared-work-gone", one.handle):
        committer.verify([one, two])
    with raises(Damaged, "decided-work-gone", one.handle) as caught:
        committer.commit(decided(one, two), [one, two])
    assert "1 of its 2 prepared transactions" in str(caught.value)
    assert len(ask.ids()) == 3  # the other part is whole: nothing healthy stays behind
    assert ask("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]


def test_abort_removes_what_was_prepared_and_can_be_repeated(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    for _ in range(2):
        committer.abort([one])
        assert ask.gids() == []
    assert ask.ids() == []


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_leftovers_are_found_by_name_and_by_generation(postgres_url: str, ask: Ask, delivery: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    sink.open("p", SCHEMA)
    old, new = prepared(sink, task(generation=1, epoch=4)), prepared(sink, task(generation=2, epoch=5))
    other = PostgresSink(postgres_url, "t", delivery=delivery)
    other.open("p2", SCHEMA)
    foreign = prepared(other, task(pipeline="p2"))
    committer = sink.recover("p")
    assert committer.leftovers(0) == []
    assert committer.leftovers(1) == [replace(old, rows=0, bytes=0)]
    assert committer.leftovers(2) == [replace(old, rows=0, bytes=0), replace(new, rows=0, bytes=0)]
    committer.abort(committer.leftovers(2))
    assert committer.leftovers(9) == []
    assert len(ask.gids()) + ask.staged() == 1
    other.recover("p2").abort([foreign])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_recovery_finishes_and_undoes_work_of_the_other_delivery(postgres_url: str, ask: Ask, delivery: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    sink.open("p", SCHEMA)
    left = prepared(sink)
    today = PostgresSink(postgres_url, "t", delivery="staged" if delivery == "two_phase" else "two_phase")
    committer = today.recover("p")
    committer.verify([left])
    committer.abort(committer.leftovers(1))
    assert (ask.gids(), ask.staged()) == ([], 0)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_an_empty_task_leaves_nothing(postgres_url: str, ask: Ask, delivery: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    sink.open("p", SCHEMA)
    writer = sink.writer(task())
    writer.write(BATCH.slice(0, 0))
    assert writer.prepare() is None
    assert (ask.gids(), ask.staged(), ask.ids()) == ([], 0, [])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_an_aborted_task_leaves_nothing_and_no_open_transaction(postgres_url: str, ask: Ask, delivery: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    sink.open("p", SCHEMA)
    writer = sink.writer(task())
    writer.write(BATCH)
    writer.abort()
    writer.abort()
    assert (ask.gids(), ask.staged(), ask.ids()) == ([], 0, [])
    open_now = "SELECT pid FROM pg_stat_activity WHERE state ~ 'in transaction' AND datname = current_database()"
    eventually(lambda: not ask(open_now))


def test_a_zombies_late_prepare_is_never_visible_and_one_sweep_removes_it(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    zombie = sink.writer(task(generation=1))
    zombie.write(BATCH)
    mine = prepared(sink, task(generation=2))
    committer.commit(decided(mine), [mine])
    committer.write_ledger(entry(1, 2))
    late = zombie.prepare()
    assert late is not None
    assert ask.ids() == [1, 2, 3]
    committer.abort(committer.leftovers(2))
    assert (ask.gids(), ask.ids()) == ([], [1, 2, 3])


def test_a_connection_that_dies_while_committing_is_in_doubt(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    ask("CREATE TABLE stop (x int)")
    with psycopg.connect(postgres_url) as holder:
        holder.execute("LOCK onefold_sinks.onefold_ledger IN ACCESS EXCLUSIVE MODE")
        with subprocess.Popen([sys.executable, "-c", _KILLER, postgres_url]) as killer:
            with raises(InDoubt, "commit-unanswered"):
                committer.write_ledger(entry())
            assert killer.wait(10) == 0
    committer.write_ledger(entry())
    committer.abort([one])


_KILLER = textwrap.dedent("""
    import psycopg, sys, time
    with psycopg.connect(sys.argv[1], autocommit=True) as c:
        for _ in range(500):
            if c.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                         " AND datname = current_database()").fetchall():
                sys.exit(0)
            time.sleep(0.01)
    sys.exit(1)
""")


# ledger


def test_a_ledger_rows_epoch_and_generation_only_grow(postgres_url: str, ask: Ask) -> None:
    committer = PostgresSink(postgres_url, "t").recover("p")
    assert committer.ledger() is None
    committer.write_ledger(entry(5, 2))
    committer.write_ledger(entry(5, 2))
    committer.write_ledger(entry(5, 3))
    for older in (entry(5, 2), entry(4, 9), entry(6, 2)):
        with pytest.raises(Fenced, match=r"epoch 5 of generation 3|taken over by generation 3"):
            committer.write_ledger(older)
    committer.write_ledger(entry(6, 3))
    assert committer.ledger() == entry(6, 3)
    assert ask("SELECT epoch, positions FROM onefold_sinks.onefold_ledger") == [(6, {"t/0": 9})]


def test_the_ledger_shows_committed_members_beyond_it(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    committer.write_ledger(entry(1))
    one, two = prepared(sink, task(epoch=2)), prepared(sink, task(epoch=2))
    assert committer.ledger() == entry(1)
    committer.commit(decided(one), [one])
    assert committer.ledger() == entry(1, members=(CommittedPart(2, 1, 1002),))
    committer.commit(decided(one, two), [one, two])
    committer.write_ledger(entry(2))
    assert committer.ledger() == entry(2)
    assert len(ask.parts()) == 2


@pytest.mark.slow
def test_two_drivers_can_create_the_bookkeeping_at_once(postgres_url: str) -> None:
    code = "import sys; from onefold.sinks import PostgresSink; PostgresSink(sys.argv[1], 't').recover('p')"
    several = [subprocess.Popen([sys.executable, "-c", code, postgres_url]) for _ in range(4)]
    assert [process.wait(60) for process in several] == [0, 0, 0, 0]


def test_a_newer_layout_of_the_bookkeeping_is_refused(postgres_url: str, ask: Ask) -> None:
    PostgresSink(postgres_url, "t").recover("p")
    ask("UPDATE onefold_sinks.onefold_version SET version = 99")
    with raises(ConfigError, "ledger-too-new"):
        PostgresSink(postgres_url, "t").recover("p")


# crashes


_WRITER = textwrap.dedent("""
    import pickle, sys
    sink, task, batch = pickle.loads(sys.stdin.buffer.read())
    writer = sink.writer(task)
    writer.write(batch)
    writer.prepare()
""")


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("place", ["before:prepare", "after:prepare"])
def test_a_killed_writers_work_is_whole_or_absent(
    postgres_url: str, ask: Ask, tmp_path: Path, delivery: str, place: str
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    committer = sink.open("p", SCHEMA)
    environment = {**os.environ, "ONEFOLD_FAILPOINT": place, "ONEFOLD_FAILPOINT_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", _WRITER], stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((sink, task(), BATCH)))
        process.stdin.close()
        eventually(lambda: any(tmp_path.iterdir()))
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    left = committer.leftovers(1)
    assert len(left) == (0 if place == "before:prepare" else 1)
    if left:
        left = [replace(left[0], rows=3)]
        committer.verify(left)
        if delivery == "staged":
            merge(sink, committer, *left)
        committer.commit(decided(*left), left)
        assert ask.ids() == [1, 2, 3]
    assert (ask.gids(), ask.staged()) == ([], 0)


def test_a_server_that_crashed_keeps_prepared_work_and_empties_the_stage(
    postgres_server: Any, postgres_url: str
) -> None:
    ask = Ask(postgres_url)
    firm = PostgresSink(postgres_url, "firm", delivery="two_phase")
    loose = PostgresSink(postgres_url, "loose", delivery="staged")
    firm_committer, loose_committer = firm.open("p", SCHEMA), loose.open("p", SCHEMA)
    kept, emptied = prepared(firm), prepared(loose)
    postgres_server.kill()
    try:
        with raises(Retriable, "postgres-unreachable"):
            firm.recover("p")
        with pytest.raises(Retriable):
            prepared(firm)
    finally:
        postgres_server.start()
    with pytest.raises(WorkLost):
        loose_committer.verify([emptied])
    with pytest.raises(WorkLost):
        merge(loose, loose_committer, emptied)
    firm_committer.verify([kept])
    firm_committer.commit(decided(kept), [kept])
    assert ask.ids("firm") == [1, 2, 3]
    assert ask.ids("loose") == []


@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_a_table_that_is_made_unlogged_while_the_pipeline_runs_takes_no_further_epoch(
    postgres_url: str, delivery: str
) -> None:
    schema = pa.schema([("id", pa.int64())])
    rows = pa.record_batch({"id": [1]}, schema=schema)
    with (
        psycopg.connect(postgres_url, autocommit=True) as connection,
        Epochs(PostgresSink(postgres_url, "t", delivery=delivery), schema) as epochs,
    ):
        epochs.run(rows)
        connection.execute("ALTER TABLE t SET UNLOGGED")
        with pytest.raises(OnefoldError) as refused:
            epochs.run(rows)
        assert "UNLOGGED" in refused.value.message
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_a_text_that_is_too_long_for_a_column_of_the_type_name_is_a_bad_row(postgres_url: str, delivery: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint, name name)")
        sink = PostgresSink(postgres_url, "t", delivery=delivery, on_error="dead_letter")
        with Epochs(sink, schema) as epochs:
            epochs.run(pa.record_batch({"id": [1, 2, 3], "name": ["a", "x" * 64, "y" * 63]}, schema=schema))
        assert connection.execute("SELECT id FROM t ORDER BY 1").fetchall() == [(1,), (3,)]
