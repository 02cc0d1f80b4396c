"""Staged delivery: what waits in the stage, the merge that is the decision, and cleaning up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.calls import BATCH, SCHEMA, Ask, decided, entry, merge, prepared, record, task
from harness.errors import raises
from harness.support import wait_until

from onefold.core.contract import LastResource, SinkKind
from onefold.core.errors import ConfigError, Fenced, WorkLost
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.merge import staging

pytestmark = pytest.mark.servers


def test_a_merge_moves_exactly_the_manifests_rows_with_the_decision(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    one, two, duplicate = prepared(sink), prepared(sink), prepared(sink)
    assert one.kind is SinkKind.LAST_RESOURCE
    assert (ask.ids(), ask.stage_rows(), ask.staged()) == ([], 9, 3)
    committer.verify([one, two])
    merge(sink, committer, one, two)
    assert ask.ids() == [1, 1, 2, 2, 3, 3]
    assert ask("SELECT epoch FROM decisions") == [(1,)]
    assert committer.ledger() == entry()
    for _ in range(2):
        committer.commit(decided(one, two), [one, two])
        assert (ask.stage_rows(), ask.staged(), len(ask.ids())) == (3, 1, 6)
    committer.abort([duplicate])
    assert (ask.stage_rows(), ask.staged()) == (0, 0)


def test_small_epochs_are_deleted_from_the_stage_until_it_is_worth_a_truncation(
    postgres_url: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    file = ask(f"SELECT pg_relation_filenode('{ask.stage()}')")
    one = prepared(sink)
    monkeypatch.setattr(staging, "_DELETED_BYTES_MAX", 2 * one.bytes)
    for number, is_same in ((1, True), (2, True), (3, False)):
        each = one if number == 1 else prepared(sink, task(epoch=number))
        merge(sink, committer, each, of=entry(number))
        committer.commit(decided(each), [each])
        assert (ask.stage_rows(), ask.staged()) == (0, 0)
        assert (ask(f"SELECT pg_relation_filenode('{ask.stage()}')") == file) is is_same


def test_a_ledger_row_that_the_decision_wrote_is_not_written_again(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    merge(sink, committer, prepared(sink))
    row = ask("SELECT xmin FROM onefold_sinks.onefold_ledger")
    committer.write_ledger(entry())
    assert ask("SELECT xmin FROM onefold_sinks.onefold_ledger") == row
    committer.write_ledger(entry(epoch=2))
    assert ask("SELECT xmin FROM onefold_sinks.onefold_ledger") != row


def test_a_stage_that_a_crash_of_the_server_emptied_is_noticed_before_anything_moves(
    postgres_url: str, ask: Ask
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    ask(f"TRUNCATE {ask.stage()}")  # what crash recovery does to an UNLOGGED table
    with raises(WorkLost, "stage-emptied"):
        committer.verify([one])
    two = prepared(sink)
    committer.verify([one, two])  # a look at the stage cannot tell; the counts can
    with raises(WorkLost, "stage-rows-missing"):
        merge(sink, committer, one, two)
    assert ask.ids() == []
    assert ask("SELECT to_regclass('decisions') IS NULL") == [(True,)]
    assert committer.ledger() is None


def test_cleaning_up_an_epoch_keeps_what_a_newer_one_has_staged(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    merge(sink, committer, one)
    newer = prepared(sink, task(generation=2, epoch=2))
    committer.commit(decided(one), [one])
    assert (ask.stage_rows(), ask.staged()) == (3, 1)
    committer.verify([newer])


def test_cleaning_up_beside_a_writer_in_flight_deletes_only_its_own(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    merge(sink, committer, one)
    writer = sink.writer(task(epoch=2))
    writer.write(BATCH)
    committer.commit(decided(one), [one])
    assert (ask.stage_rows(), ask.staged()) == (0, 0)
    in_flight = writer.prepare()
    assert in_flight is not None
    committer.verify([in_flight])


def test_a_losing_attempt_does_not_outlive_one_sweep(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    winner, loser = prepared(sink), prepared(sink)
    committer.abort([c for c in committer.leftovers(1) if c.handle != winner.handle])
    assert (ask.stage_rows(), ask.staged()) == (3, 1)
    assert loser.handle not in [c.handle for c in committer.leftovers(1)]
    merge(sink, committer, winner)
    assert ask.ids() == [1, 2, 3]


def test_a_merge_under_an_older_generation_than_the_ledgers_is_fenced_and_moves_nothing(
    postgres_url: str, ask: Ask
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    committer.write_ledger(entry(epoch=1, generation=2))
    one = prepared(sink)
    with raises(Fenced, "taken-over"):
        merge(sink, committer, one)
    assert ask.ids() == []


def test_rows_that_change_get_a_stage_of_their_own_and_the_old_one_goes_with_the_next_epoch(
    postgres_url: str, ask: Ask
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    sink.open("p", SCHEMA)
    prepared(sink)
    old = ask.stage()
    ask("ALTER TABLE t ADD COLUMN more integer")
    wider = SCHEMA.append(pa.field("more", pa.int32()))
    committer = sink.open("p", wider)
    for generation, left in ((1, 2), (2, 1)):  # one is still listed for the old stage, until a recovery sweeps it
        one = prepared(sink, task(generation, generation), BATCH.append_column("more", pa.array([7, 8, 9], pa.int32())))
        merge(sink, committer, one, of=entry(generation, generation))
        committer.commit(decided(one), [one])
        assert ask("SELECT count(*) FROM pg_class WHERE relname ~ '^onefold_stage_'") == [(left,)]
        committer.abort(committer.leftovers(1))
    assert ask.stage() != old
    assert ask("SELECT more FROM t ORDER BY id") == [(7,), (7,), (8,), (8,), (9,), (9,)]


def test_a_zombies_old_decision_drops_no_stage_that_its_successor_is_about_to_fill(postgres_url: str, ask: Ask) -> None:
    zombie = PostgresSink(postgres_url, "t", delivery="staged")
    its = zombie.open("p", SCHEMA)
    one = prepared(zombie)
    merge(zombie, its, one)
    ask("ALTER TABLE t ADD COLUMN more integer")
    live = PostgresSink(postgres_url, "t", delivery="staged")
    committer = live.recover("p")
    committer.commit(decided(one), [one])
    committer.write_ledger(entry(1, generation=2))
    committer = live.open("p", SCHEMA.append(pa.field("more", pa.int32())))
    its.commit(decided(one), [one])
    two = prepared(live, task(2, 2), BATCH.append_column("more", pa.array([7, 8, 9], pa.int32())))
    merge(live, committer, two, of=entry(2, 2))
    assert ask("SELECT count(*) FROM t") == [(6,)]


def test_an_outgrown_stage_that_somebody_opens_just_then_is_kept(postgres_url: str, ask: Ask) -> None:
    """Its opener has found it there, and would not make it again."""
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    sink.open("p", SCHEMA)
    old = ask.stage()
    ask("ALTER TABLE t ADD COLUMN more integer")
    committer = sink.open("p", SCHEMA.append(pa.field("more", pa.int32())))
    one = prepared(sink, batch=BATCH.append_column("more", pa.array([7, 8, 9], pa.int32())))
    merge(sink, committer, one)
    there = "SELECT to_regclass(%s) IS NOT NULL"
    with psycopg.connect(postgres_url) as opener:
        quoted = ".".join(f'"{part}"' for part in old.split("."))
        opener.execute(f"LOCK TABLE {quoted} IN ACCESS SHARE MODE".encode())
        committer.commit(decided(one), [one])
        assert ask(there, old) == [(True,)]
    committer.commit(decided(one), [one])
    assert ask(there, old) == [(False,)]


def test_a_store_in_another_database_is_told_apart(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    assert isinstance(committer, LastResource)
    assert not committer.shares_store("abc")
    ask("CREATE TABLE onefold_store (store_id varchar(36))")
    ask("INSERT INTO onefold_store VALUES ('abc')")
    assert committer.shares_store("abc")
    assert not committer.shares_store("abd")
    ask('CREATE SCHEMA "Odd %s"; CREATE TABLE "Odd %s".onefold_store (store_id varchar(36))')
    ask("""INSERT INTO "Odd %%s".onefold_store VALUES (%s)""", "odd")
    assert committer.shares_store("odd")
    assert not committer.shares_store("abd")
    one = prepared(sink)
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection, raises(ConfigError, "store-elsewhere"):
        committer.merge(connection, record(one), [one], entry())
    engine.dispose()


def test_a_stage_that_is_dropped_while_it_is_opened_is_made_again(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    sink.open("p", SCHEMA).close()
    quoted = ".".join(f'"{part}"' for part in ask.stage().split("."))
    with ThreadPoolExecutor() as pool, psycopg.connect(postgres_url) as older:
        older.execute(f"DROP TABLE {quoted}".encode())  # as `drop_outgrown` does
        opening = pool.submit(sink.open, "p", SCHEMA)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: bool(ask(waiting)), "for the opening to wait")
        older.commit()
        opening.result(timeout=10).close()
    assert ask(f"SELECT count(*) FROM {quoted}") == [(0,)]
