"""Direct delivery without a server: what an attempt hands over, and what the decision's message holds."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.postgres.message import Answer, CopyData
from onefold.core.contract import Committable, EpochRecord, EpochState, LedgerEntry, SinkKind, TaskId
from onefold.core.errors import BadRecord, ConfigError, Retriable, WorkLost
from onefold.core.positions import Positions, Range
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.committer import PostgresCommitter
from onefold.sinks.postgres.schema.type_mapping import Column, own
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.sink_plan import PostgresPlan
from onefold.sinks.postgres.writer import PostgresWriter

NOWHERE = "postgresql://postgres@localhost:1/none"
ROWS = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64())})
TASK = TaskId("p", 1, 7, 1_000, uuid.uuid4())
RECORD = EpochRecord("p", 7, 1, EpochState.OPEN, Range(Positions(), Positions()), 1_000, "", 0, "")
ENTRY = LedgerEntry(7, 1, 1_000, Positions(), "store")


def settings(**more: object) -> PostgresSinkConfig:
    return PostgresSinkConfig(url=NOWHERE, table="public.t", delivery="direct", **more)  # type: ignore[arg-type]


def column(name: str) -> Column:
    made = own(name, pa.int64())
    assert made is not None
    return made


def plan(of: PostgresSinkConfig, **more: object) -> PostgresPlan:
    made = PostgresPlan(
        pipeline="p",
        delivery=Delivery.DIRECT,
        reason="",
        target='"public"."t"',
        columns=(column("id"),),
        types={"id": "20 -1"},
        stage="onefold_stage_x",
        stage_table='"s"."onefold_stage_x"',
        writers_max=None,
        names=("id",),
        changes=of.changes,
        direct_bytes_max=64_000,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def attempt(of: PostgresSinkConfig, *batches: pa.RecordBatch, **more: object) -> Committable:
    writer = PostgresWriter(of, plan(of, **more), TASK.another_attempt())
    for batch in batches:
        writer.write(batch)
    left = writer.prepare()
    assert left is not None
    return left


def test_a_small_attempt_hands_its_rows_over_and_asks_no_server() -> None:
    left = attempt(settings(), ROWS)
    assert (left.kind, left.rows, left.bytes) == (SinkKind.LAST_RESOURCE, 3, len(left.payload))
    assert len(left.payload) == 3 * (2 + 4 + 8)
    assert pickle.loads(pickle.dumps(left)).payload == left.payload
    assert replace(left, payload=b"") == left, "what a store keeps of it is the same work"
    assert str(left.payload) not in repr(left)


@pytest.mark.parametrize("bytes_max", [20, 30])  # less than the rows take in Arrow; less than they take in COPY
def test_more_than_its_share_goes_to_the_stage(bytes_max: int) -> None:
    with raises(Retriable, "postgres-unreachable"):
        attempt(settings(), ROWS, direct_bytes_max=bytes_max * TASK.writers)
    alone = PostgresWriter(
        settings(), plan(settings(), direct_bytes_max=bytes_max * TASK.writers), replace(TASK, writers=1)
    )
    alone.write(ROWS)
    assert alone.prepare()


def test_a_value_that_postgres_cannot_hold_is_a_bad_record() -> None:
    of, text = settings(), own("id", pa.string())
    assert text is not None
    uuids = replace(text, wire=type(text.wire).UUID)
    with raises(BadRecord, "value-not-storable"):
        attempt(of, pa.record_batch({"id": ["no uuid"]}), columns=(uuids,))


def test_the_decision_has_one_copy_of_all_attempts_before_the_pipeline_is_locked() -> None:
    of = settings()
    one, two = attempt(of, ROWS), attempt(of, ROWS, ROWS)
    joined = PostgresCommitter(of, "p", plan(of)).joined(RECORD, [one, two], ENTRY)
    assert joined is not None
    (limit, _), (copy, data), _ = joined.before
    assert limit.startswith("SET LOCAL lock_timeout")
    assert copy.startswith('COPY "public"."t" ("id") FROM STDIN')
    assert isinstance(data, CopyData)
    sent = b"".join(data.pieces)
    assert sent[19:-2] == one.payload + two.payload
    assert (sent[:7], sent[-2:]) == (b"PGCOPY\n", b"\xff\xff")
    (moving,) = joined.after
    assert "1 / count(*)" in moving[0], "a ledger's row that is another's ends the transaction"


def test_rows_that_are_missing_and_types_that_changed_decide_nothing() -> None:
    of = settings()
    committer, work = PostgresCommitter(of, "p", plan(of)), [attempt(of, ROWS)]
    joined = committer.joined(RECORD, work, ENTRY)
    assert joined is not None
    done, types, moved = Answer([], -1), Answer([("id", "20 -1")], 1), Answer([], 1)
    with raises(WorkLost, "stage-rows-missing"):
        joined.check(None, [done, Answer([], 2), types, moved])
    with raises(Retriable, "table-altered"):
        joined.check(None, [done, Answer([], 3), Answer([("id", "21 -1")], 1), moved])
    joined.check(None, [done, Answer([], 3), types, moved])
    with raises(WorkLost, "rows-not-carried"):
        committer.verify([replace(work[0], payload=b"")])


def test_upserts_are_merged_from_a_table_of_the_sessions_own() -> None:
    of, more = settings(mode="upsert", key="id", order="v"), {"columns": (column("id"), column("v"))}
    rows = pa.record_batch({"id": pa.array([1], pa.int64()), "v": pa.array([1], pa.int64())})
    work = attempt(of, rows, names=("id", "v"), **more)
    joined = PostgresCommitter(of, "p", plan(of, **more)).joined(RECORD, [work], ENTRY)
    assert joined is not None
    texts = " ".join(text for text, _ in joined.before)
    for part in ("CREATE TEMP TABLE", 'COPY pg_temp."onefold_stage_x"', 'MERGE INTO "public"."t"'):
        assert part in texts


def test_dead_letters_need_a_stage() -> None:
    with raises(ConfigError, "options-conflict"):
        settings(on_error="dead_letter")
    of = settings()
    assert PostgresCommitter(of, "p", plan(of, rejects="r")).joined(RECORD, [], ENTRY) is None


def test_it_promises_what_staged_promises() -> None:
    direct, staged = (PostgresSink(NOWHERE, "t", delivery=each).guarantee() for each in ("direct", "staged"))
    assert replace(direct, mode="staged") == staged
