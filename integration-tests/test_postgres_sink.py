"""The Postgres sink's promises, one by one, asked of a real server."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from onefold.core.contract import (
    Committable,
    Decided,
    EpochRecord,
    EpochState,
    LastResource,
    LedgerEntry,
    Member,
    SinkKind,
    SinkWriter,
    TaskId,
)
from onefold.core.errors import (
    BadRecord,
    ConfigError,
    Damaged,
    Fenced,
    InDoubt,
    Retriable,
    SchemaMismatch,
    WorkLost,
)
from onefold.core.positions import Positions, Range
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BATCH = pa.record_batch({"id": pa.array([1, 2, 3]), "name": pa.array(["a", "b", None])}, schema=SCHEMA)
DELIVERIES = ["two_phase", "staged"]


class Ask:
    """The server's own view, over a connection that the sink knows nothing of."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, query: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def ids(self, table: str = "t") -> list[int]:
        return [row[0] for row in self(f"SELECT id FROM {table} ORDER BY id")]

    def gids(self) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        return [row[0] for row in self(query)]

    def parts(self) -> list[Any]:
        return self("SELECT epoch, generation, timestamp_ms, rows FROM onefold_sinks.onefold_parts ORDER BY 1, 2, 3, 4")

    def staged(self) -> int:
        return int(self("SELECT count(*) FROM onefold_sinks.onefold_staged")[0][0])

    def stage(self) -> str:
        (row,) = self("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_stage_'")
        return str(row[0])

    def stage_rows(self) -> int:
        return int(self(f"SELECT count(*) FROM {self.stage()}")[0][0])


@pytest.fixture
def ask(postgres_url: str) -> Iterator[Ask]:
    ask = Ask(postgres_url)
    yield ask
    for gid in ask.gids():
        ask(f"ROLLBACK PREPARED '{gid}'")


def task(generation: int = 1, epoch: int = 1, pipeline: str = "p") -> TaskId:
    return TaskId(pipeline, generation, epoch, 1000 + epoch, uuid.uuid4())


def prepared(sink: PostgresSink, of: TaskId | None = None, batch: pa.RecordBatch = BATCH) -> Committable:
    writer = sink.writer(of or task())
    writer.write(batch)
    committable = writer.prepare()
    assert committable is not None
    return committable


def decided(*manifest: Committable, state: EpochState = EpochState.DECIDED) -> Decided:
    return Decided(record(*manifest, state=state))


def record(*manifest: Committable, state: EpochState = EpochState.OPEN) -> EpochRecord:
    epoch, generation = manifest[0].epoch, manifest[0].generation
    range_ = Range(Positions(), Positions.of({"t/0": 9}))
    return EpochRecord("p", epoch, generation, state, range_, 1000 + epoch, "q", 0, "f", manifest, ("t",))


def entry(epoch: int = 1, generation: int = 1, **more: Any) -> LedgerEntry:
    return LedgerEntry(epoch, generation, 1000 + epoch, Positions.of({"t/0": 9}), "store", **more)


def merge(sink: PostgresSink, committer: Any, *manifest: Committable, of: LedgerEntry | None = None) -> None:
    """A decision, as the checkpoint store makes it: one transaction of its own."""
    assert isinstance(committer, LastResource)
    engine = sa.create_engine(sink.store_url() or "")
    try:
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE IF NOT EXISTS decisions (epoch bigint PRIMARY KEY)"))
            connection.execute(sa.text("INSERT INTO decisions VALUES (:e)"), {"e": manifest[0].epoch})
            committer.merge(connection, record(*manifest), manifest, of or entry(manifest[0].epoch))
    finally:
        engine.dispose()


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


def test_a_commit_that_is_repeated_finds_it_done(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one, two = prepared(sink), prepared(sink)
    committer.commit(decided(one), [one])
    for _ in range(2):
        sink.recover("p").commit(decided(one, two), [one, two])
    assert len(ask.ids()) == 6
    committer.record(entry(epoch=1))
    committer.commit(decided(one, two), [one, two])
    committer.record(entry(epoch=2))
    assert ask.parts() == []
    committer.commit(decided(one, two), [one, two])
    assert len(ask.ids()) == 6


def test_a_decided_transaction_that_somebody_rolled_back_is_damage_with_evidence(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one, two = prepared(sink), prepared(sink)
    ask(f"ROLLBACK PREPARED '{one.handle}'")
    with pytest.raises(WorkLost, match=one.handle):
        committer.verify([one, two])
    with pytest.raises(Damaged, match=one.handle) as caught:
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


@pytest.mark.parametrize("delivery", [*DELIVERIES, "at_least_once"])
def test_an_empty_task_leaves_nothing(postgres_url: str, ask: Ask, delivery: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    sink.open("p", SCHEMA)
    writer = sink.writer(task())
    writer.write(BATCH.slice(0, 0))
    assert writer.prepare() is None
    assert (ask.gids(), ask.staged(), ask.ids()) == ([], 0, [])


@pytest.mark.parametrize("delivery", [*DELIVERIES, "at_least_once"])
def test_an_aborted_task_leaves_nothing_and_no_open_transaction(postgres_url: str, ask: Ask, delivery: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery=delivery)
    sink.open("p", SCHEMA)
    writer = sink.writer(task())
    writer.write(BATCH)
    writer.abort()
    writer.abort()
    assert (ask.gids(), ask.staged(), ask.ids()) == ([], 0, [])
    open_now = "SELECT pid FROM pg_stat_activity WHERE state ~ 'in transaction' AND datname = current_database()"
    assert _eventually(lambda: not ask(open_now))


def test_a_zombies_late_prepare_is_never_visible_and_one_sweep_removes_it(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    zombie = sink.writer(task(generation=1))
    zombie.write(BATCH)
    mine = prepared(sink, task(generation=2))
    committer.commit(decided(mine), [mine])
    committer.record(entry(1, 2))
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
            with pytest.raises(InDoubt, match="epoch 1"):
                committer.record(entry())
            assert killer.wait(10) == 0
    committer.record(entry())
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


# staged


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
        assert (ask.stage_rows(), ask.staged(), len(ask.ids())) == (0, 0, 6)
    committer.abort([duplicate])


def test_a_stage_that_a_crash_of_the_server_emptied_is_noticed_before_anything_moves(
    postgres_url: str, ask: Ask
) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    ask(f"TRUNCATE {ask.stage()}")  # what crash recovery does to an UNLOGGED table
    with pytest.raises(WorkLost, match="no rows"):
        committer.verify([one])
    two = prepared(sink)
    committer.verify([one, two])  # a look at the stage cannot tell; the counts can
    with pytest.raises(WorkLost, match="moved 3 rows, and the manifest says 6"):
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
    committer.record(entry(epoch=1, generation=2))
    one = prepared(sink)
    with pytest.raises(Fenced, match="generation 2"):
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
    committer.record(entry(1, generation=2))
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
        opener.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (quoted,))
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
    with engine.begin() as connection, pytest.raises(ConfigError, match="the checkpoint store is elsewhere"):
        committer.merge(connection, record(one), [one], entry())
    engine.dispose()


# ledger


def test_ledger_rows_only_go_forward_by_epoch_then_generation(postgres_url: str, ask: Ask) -> None:
    committer = PostgresSink(postgres_url, "t").recover("p")
    assert committer.ledger() is None
    committer.record(entry(5, 2))
    committer.record(entry(5, 2))
    committer.record(entry(5, 3))
    for older in (entry(5, 2), entry(4, 9)):
        with pytest.raises(Fenced, match="epoch 5 of generation 3"):
            committer.record(older)
    committer.record(entry(6, 1))
    assert committer.ledger() == entry(6, 1)
    assert ask("SELECT epoch, positions FROM onefold_sinks.onefold_ledger") == [(6, {"t/0": 9})]


def test_the_ledger_shows_committed_members_beyond_it(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    committer.record(entry(1))
    one, two = prepared(sink, task(epoch=2)), prepared(sink, task(epoch=2))
    assert committer.ledger() == entry(1)
    committer.commit(decided(one), [one])
    assert committer.ledger() == entry(1, members=(Member(2, 1, 1002),))
    committer.commit(decided(one, two), [one, two])
    committer.record(entry(2))
    assert committer.ledger() == entry(2)
    assert len(ask.parts()) == 2


def test_two_drivers_can_create_the_bookkeeping_at_once(postgres_url: str) -> None:
    code = "import sys; from onefold.sinks import PostgresSink; PostgresSink(sys.argv[1], 't').recover('p')"
    several = [subprocess.Popen([sys.executable, "-c", code, postgres_url]) for _ in range(4)]
    assert [process.wait(60) for process in several] == [0, 0, 0, 0]


def test_a_newer_layout_of_the_bookkeeping_is_refused(postgres_url: str, ask: Ask) -> None:
    PostgresSink(postgres_url, "t").recover("p")
    ask("UPDATE onefold_sinks.onefold_version SET version = 99")
    with pytest.raises(ConfigError, match="layout 99"):
        PostgresSink(postgres_url, "t").recover("p")


# crashes


_WRITER = textwrap.dedent("""
    import pickle, sys
    sink, task, batch = pickle.loads(sys.stdin.buffer.read())
    writer = sink.writer(task)
    writer.write(batch)
    writer.prepare()
""")


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
        assert _eventually(lambda: any(tmp_path.iterdir()))
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
        with pytest.raises(Retriable, match="Is the server up"):
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


# choosing, opening, refusing


def test_auto_takes_two_phase_where_nothing_speaks_against_it(postgres_url: str) -> None:
    sink = PostgresSink(postgres_url, "t")
    assert sink.guarantee().mode == "two_phase"
    sink.open("p", SCHEMA)
    assert sink.guarantee().kind is SinkKind.TWO_PHASE
    assert sink.delivery_reason is not None
    assert "max_prepared_transactions" in sink.delivery_reason
    most = sink.writers_max()
    assert most is not None
    assert 1 <= most < 64


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE TABLE t (id bigint PRIMARY KEY, name text)", "unique index t_pkey"),
        ("CREATE TABLE t (id bigint, name text); CREATE UNIQUE INDEX u ON t (name)", "unique index u"),
        ("CREATE TABLE t (id bigint, name text, EXCLUDE USING btree (id WITH =))", "exclusion constraint"),
        (
            "CREATE TABLE t (id bigint, name text); CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "trigger tr",
        ),
        ("CREATE TABLE o (id bigint, name text); CREATE VIEW t AS SELECT * FROM o", "it is a view"),
        (
            "CREATE TABLE t (id bigint, name text) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT; "
            "CREATE UNIQUE INDEX part ON t1 (name)",
            "unique index part",
        ),
    ],
)
def test_auto_takes_staged_where_siblings_would_wait(postgres_url: str, ask: Ask, statement: str, reason: str) -> None:
    ask(statement)
    sink = PostgresSink(postgres_url, "t")
    assert sink.guarantee().mode == "staged"
    sink.open("p", SCHEMA)
    assert reason in (sink.delivery_reason or "")
    assert sink.guarantee().atomic_epoch
    with pytest.raises(ConfigError, match=reason):
        PostgresSink(postgres_url, "t", delivery="two_phase").open("p", SCHEMA)


def test_a_duplicate_key_in_a_merge_names_the_constraint_and_decides_nothing(postgres_url: str, ask: Ask) -> None:
    ask("CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    sink = PostgresSink(postgres_url, "t")
    committer = sink.open("p", SCHEMA)
    one, two = prepared(sink), prepared(sink)
    with pytest.raises(BadRecord, match="t_pkey"):
        merge(sink, committer, one, two)
    assert ask.ids() == []


def test_a_partitioned_table_takes_both_deliveries(postgres_url: str, ask: Ask) -> None:
    ask("CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id); CREATE TABLE t1 PARTITION OF t DEFAULT")
    sink = PostgresSink(postgres_url, "t")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    committer.commit(decided(one), [one])
    sink = PostgresSink(postgres_url, "t", delivery="staged")
    committer = sink.open("p", SCHEMA)
    two = prepared(sink, task(epoch=2))
    merge(sink, committer, two)
    assert len(ask.ids()) == 6


def test_every_column_that_does_not_fit_is_named_at_once(postgres_url: str, ask: Ask) -> None:
    ask(
        """CREATE TABLE t (id integer, "Name" text, made bigint GENERATED ALWAYS AS IDENTITY,
           calculated bigint GENERATED ALWAYS AS (1) STORED, needed text NOT NULL, filled text NOT NULL DEFAULT 'x')"""
    )
    rows = SCHEMA.append(pa.field("made", pa.int64())).append(pa.field("calculated", pa.int64()))
    with pytest.raises(SchemaMismatch) as caught:
        PostgresSink(postgres_url, "t").open("p", rows)
    lines = str(caught.value).splitlines()[2:]
    shown = [line.split()[:2] if line.startswith("  !") else [line.split()[0]] for line in lines]
    bad = ["id", "name", "made", "calculated", "needed"]
    assert shown == [*(["!", name] for name in bad[:4]), ["Name"], ["!", "needed"], ["filled"]]
    assert "int64" in lines[0]
    assert "integer" in lines[0]
    assert "case matters" in lines[1]


def test_an_unlogged_target_is_refused(postgres_url: str, ask: Ask) -> None:
    ask("CREATE UNLOGGED TABLE t (id bigint, name text)")
    with pytest.raises(ConfigError, match="SET LOGGED"):
        PostgresSink(postgres_url, "t").open("p", SCHEMA)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(
    ("schema", "table", "sql"),
    [
        ("public", "select", '"select"'),
        ("public", "Mixed Case", '"Mixed Case"'),
        ("public", "odd%s'name", '"odd%s\'name"'),
        ("Odd Schema", "Odd Schema.t", '"Odd Schema".t'),
        ("a.b", '"a.b"."c""d.e"', '"a.b"."c""d.e"'),
        ("public", "ein_sehr_langer_name_mit_ümläuten_und_mehr", '"ein_sehr_langer_name_mit_ümläuten_und_mehr"'),
    ],
)
def test_names_are_kept_as_they_are(
    postgres_url: str, ask: Ask, delivery: str, schema: str, table: str, sql: str
) -> None:
    ask(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    columns = ["id", "Group", "or%der", 'q"uote', "a:b", "ü'x"]
    batch = pa.record_batch({name: pa.array([1, 2]) for name in columns})
    sink = PostgresSink(postgres_url, table, delivery=delivery)
    committer = sink.open('p/%"ü' * 30, batch.schema)
    one = prepared(sink, task(pipeline='p/%"ü' * 30), batch)
    if delivery == "staged":
        merge(sink, committer, one)
    committer.commit(decided(one), [one])
    assert ask(f"SELECT * FROM {sql}") == [(1,) * 6, (2,) * 6]
    assert committer.leftovers(9) == []


def test_at_least_once_says_that_it_protects_nothing(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="at_least_once")
    committer = sink.open("p", SCHEMA)
    assert "NO protection" in sink.guarantee().conditions[0]
    one = prepared(sink)
    assert ask.ids() == [1, 2, 3]
    committer.verify([one])
    committer.commit(decided(one), [one])
    committer.abort([one])
    committer.record(entry())
    assert committer.ledger() == entry()
    assert ask.ids() == [1, 2, 3]
    assert ask.parts() == []


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
    with pytest.raises(ConfigError, match=f'GRANT CREATE ON DATABASE .* TO "{role}"'):
        PostgresSink(limited, "t").recover("p")
    ask(f"CREATE SCHEMA onefold_sinks AUTHORIZATION {role}")
    with pytest.raises(ConfigError, match='GRANT CREATE ON SCHEMA "public"'):
        PostgresSink(limited, "t").open("p", SCHEMA)
    ask("CREATE TABLE t (id bigint, name text)")
    with pytest.raises(ConfigError, match=r'GRANT INSERT ON "public"\."t"') as caught:
        PostgresSink(limited, "t").open("p", SCHEMA)
    assert "hunter2" not in str(caught.value)
    ask(f"GRANT INSERT ON t TO {role}")
    sink = PostgresSink(limited, "t", delivery="two_phase")
    committer = sink.open("p", SCHEMA)
    one = prepared(sink)
    committer.commit(decided(one), [one])
    assert ask.ids() == [1, 2, 3]


def test_a_bookkeeping_schema_that_would_hide_the_users_own_tables_is_refused(postgres_url: str, ask: Ask) -> None:
    (user,) = ask("SELECT current_user")[0]
    with pytest.raises(ConfigError, match="hide the tables"):
        PostgresSink(postgres_url, "t", bookkeeping_schema=user).recover("p")
    PostgresSink(postgres_url, "t").open("p", SCHEMA)
    assert ask("SELECT to_regclass('public.t') IS NOT NULL") == [(True,)]


def test_a_transaction_of_another_role_is_no_damage(postgres_url: str, ask: Ask, role: str) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    sink.open("p", SCHEMA)
    one = prepared(sink)
    ask(f"GRANT USAGE ON SCHEMA onefold_sinks TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA onefold_sinks TO {role}")
    other = PostgresSink(_with(postgres_url, user=role, password="hunter2"), "t", delivery="two_phase").recover("p")
    for call in (lambda: other.commit(decided(one), [one]), lambda: other.abort([one])):
        with pytest.raises(ConfigError, match=r"belongs to role '.*SET ROLE"):
            call()
    assert ask.gids() == [one.handle]


def test_a_transaction_of_another_database_is_no_damage(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase")
    sink.open("p", SCHEMA)
    one = prepared(sink)
    name = f"other_{uuid.uuid4().hex[:8]}"
    ask(f"CREATE DATABASE {name}")
    other = PostgresSink(_with(postgres_url, dbname=name), "t", delivery="two_phase").recover("p")
    with pytest.raises(ConfigError, match="another database"):
        other.commit(decided(one), [one])
    assert other.leftovers(9) == []
    other.close()
    ask(f"DROP DATABASE {name} WITH (FORCE)")
    assert ask.gids() == [one.handle]


def test_no_text_shows_the_password(postgres_url: str) -> None:
    sink = PostgresSink(_with(postgres_url, password="hunter2", dbname="no_such_database"), "t")
    assert "hunter2" not in repr(sink)
    assert "hunter2" not in repr(sink._settings)
    with pytest.raises(ConfigError, match="no_such_database") as caught:
        sink.recover("p")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        PostgresSink("postgresql://u:hunter2 x@h:bad", "t")
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_down_is_worth_another_try() -> None:
    with pytest.raises(Retriable, match=r"127\.0\.0\.1:1"):
        PostgresSink("postgresql://u:hunter2@127.0.0.1:1/d", "t").recover("p")


def test_a_wait_for_a_lock_ends_and_names_the_holder(postgres_url: str, ask: Ask) -> None:
    sink = PostgresSink(postgres_url, "t", delivery="two_phase", lock_timeout_s=0.2)
    sink.open("p", SCHEMA)
    ask("BEGIN; LOCK t IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'the orphan'")
    writer = sink.writer(task())
    with pytest.raises(Retriable, match="prepared transaction 'the orphan'"):
        _finish(writer)
    ask("ROLLBACK PREPARED 'the orphan'")
    with psycopg.connect(postgres_url, application_name="someone") as holder:
        holder.execute("LOCK t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Retriable, match=f"pid {holder.info.backend_pid} .someone"):
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
    with pytest.raises(Retriable, match="prepared transaction 'the orphan'"):
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
    with pytest.raises(Retriable, match="max_prepared_transactions"):
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
    ask(mine.replace("SELECT pid", "SELECT pg_terminate_backend(pid)"))
    work.append(prepared(sink))
    committer.abort(work)
    assert ask.gids() == []


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
    from onefold.sinks.postgres import connection

    for default, effective in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        info = connection.conninfo(_with(postgres_url, options=f"-c synchronous_commit={default}"), "p", 5)
        with connection.borrow(info, "test") as session:
            session.execute(connection.begin(2.5))
            assert session.execute("SHOW synchronous_commit").fetchone() == (effective,)
            assert session.execute("SHOW lock_timeout").fetchone() == ("2500ms",)
            assert session.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
            session.execute("ROLLBACK")
        connection.close_idle(info)
    assert ask("SELECT 1") == [(1,)]


def test_rows_of_other_columns_than_opened_are_refused(postgres_url: str) -> None:
    sink = PostgresSink(postgres_url, "t")
    sink.open("p", SCHEMA)
    writer = sink.writer(task())
    with pytest.raises(SchemaMismatch, match="id, other"):
        writer.write(pa.record_batch({"id": pa.array([1]), "other": pa.array([1])}))


def _eventually(check: Any, timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return bool(check())
