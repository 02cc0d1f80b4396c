"""Rows that Postgres refuses: they stop the pipeline, or become dead letters of the same epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.renewing import assert_renewed

from onefold.core import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers

DELIVERIES = ["staged", "two_phase"]
LETTERS = "onefold_sinks.onefold_dead_letters"
PAGE = Path(__file__).parents[2] / "docs" / "bad-rows.md"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def ask(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def batch(ids: Sequence[int], values: Sequence[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Bytes stand for a text as a system that does not look at it delivers it."""
    is_bytes = any(isinstance(value, bytes) for value in values)
    column = pa.array(values, pa.binary()).view(pa.string()) if is_bytes else pa.array(values, kind or pa.int64())
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "v": column})


def sink_of(url: str, delivery: str, on_error: str = "dead_letter", **more: Any) -> PostgresSink:
    settings: dict[str, Any] = {"on_error": on_error, **more}
    return PostgresSink(url, "t", delivery=delivery, **settings)


def taken(url: str) -> list[int]:
    return [row[0] for row in ask(url, "SELECT id FROM t ORDER BY id")]


def dead(url: str) -> list[int]:
    return [row[0] for row in ask(url, f"SELECT (row->>'id')::bigint FROM {LETTERS} ORDER BY 1")]


def assert_nothing_waits(url: str) -> None:
    assert ask(url, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
    assert ask(url, "SELECT * FROM onefold_sinks.onefold_staged") == []
    assert ask(url, "SELECT * FROM onefold_sinks.onefold_staged_dead") == []


@dataclass(frozen=True)
class Case:
    """A kind of bad row: the table, and what its column `v` gets; the second of the three is bad."""

    what: str
    table: str
    kind: pa.DataType
    values: tuple[Any, Any, Any]
    blocks: bool = False  # two-phase delivery does not suit the table


PLAIN = "CREATE TABLE t (id bigint, v {})"
PARENTS = "CREATE TABLE u (id bigint PRIMARY KEY); INSERT INTO u VALUES (1), (2); "
TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.v < 0 THEN RAISE 'no negative v'; END IF; RETURN NEW; END $$;
CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()"""
CODED_TRIGGER = TRIGGER.replace("'no negative v'", "'no negative v' USING ERRCODE = 'OR001'")
LATE_TRIGGER = TRIGGER.replace("BEFORE INSERT ON t", "AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED").replace(
    "CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER"
)
TOO_LONG = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(200))  # however it is compressed
CASES = [
    Case("NUL in a text", PLAIN.format("text"), pa.string(), ("a", "b\0c", "d")),
    Case("bytes in a text that are no UTF-8", PLAIN.format("text"), pa.string(), (b"a", b"b\xffc", b"d")),
    Case("a text too long for its column", PLAIN.format("varchar(3)"), pa.string(), ("abc", "abcd", "ab")),
    Case(
        "a text too long for an index",
        PLAIN.format("text") + "; CREATE INDEX ON t (v)",
        pa.string(),
        ("a", TOO_LONG, "b"),
    ),
    Case("null in a NOT NULL column", PLAIN.format("text NOT NULL"), pa.string(), ("a", None, "b")),
    Case("a value that a CHECK forbids", PLAIN.format("bigint CHECK (v > 0)"), pa.int64(), (1, -1, 2)),
    Case(
        "a value that a domain forbids",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0); " + PLAIN.format("positive"),
        pa.int32(),
        (1, -1, 2),
    ),
    Case(
        "a value that an enum lacks",
        "CREATE TYPE mood AS ENUM ('ok'); " + PLAIN.format("mood"),
        pa.string(),
        ("ok", "no", "ok"),
    ),
    Case("no JSON in a jsonb column", PLAIN.format("jsonb"), pa.string(), ("{}", "{", "[]")),
    Case("JSON that is nested too deep", PLAIN.format("jsonb"), pa.string(), ("{}", "[" * 99_999 + "]" * 99_999, "[]")),
    Case("no UUID in a uuid column", PLAIN.format("uuid"), pa.string(), ("0" * 32, "x", "1" * 32)),
    Case("a time before 4714 BC", PLAIN.format("timestamp"), pa.timestamp("us"), (0, -(2**60), 1)),
    Case("a foreign key to no row", PARENTS + PLAIN.format("bigint REFERENCES u"), pa.int64(), (1, 9, 2)),
    Case(
        "a foreign key to no row, checked at the end",
        PARENTS + PLAIN.format("bigint REFERENCES u DEFERRABLE INITIALLY DEFERRED"),
        pa.int64(),
        (1, 9, 2),
    ),
    Case("a unique value for the second time", PLAIN.format("bigint UNIQUE"), pa.int64(), (1, 1, 2), True),
    Case(
        "a unique value that the table has",
        PLAIN.format("bigint UNIQUE") + "; INSERT INTO t VALUES (0, 7)",
        pa.int64(),
        (1, 7, 2),
        True,
    ),
    Case("a value that EXCLUDE forbids", PLAIN.format("bigint, EXCLUDE (v WITH =)"), pa.int64(), (1, 1, 2), True),
    Case("a row that a trigger raises at", PLAIN.format("bigint") + ";" + TRIGGER, pa.int64(), (1, -1, 2), True),
    Case(
        "a row that a trigger raises at, with an SQLSTATE of its own",
        PLAIN.format("bigint") + ";" + CODED_TRIGGER,
        pa.int64(),
        (1, -1, 2),
        True,
    ),
    Case(
        "a row that a constraint trigger raises at, at the end",
        PLAIN.format("bigint") + ";" + LATE_TRIGGER,
        pa.int64(),
        (1, -1, 2),
        True,
    ),
    Case(
        "a row for which there is no partition",
        PLAIN.format("bigint") + " PARTITION BY RANGE (v); CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (9)",
        pa.int64(),
        (1, 9, 2),
    ),
]


@pytest.mark.slow
@pytest.mark.docs
def test_every_kind_of_bad_row_stops_the_pipeline_or_is_put_aside(
    postgres_url: str, request: pytest.FixtureRequest
) -> None:
    lines = [
        "| A row with | stops the pipeline, or is put aside, with | staged | two_phase |",
        "| --- | --- | --- | --- |",
    ]
    for case in CASES:
        reason, cells = "", []
        for delivery in DELIVERIES:
            ask(postgres_url, "DROP SCHEMA IF EXISTS public, onefold_sinks CASCADE; CREATE SCHEMA public")
            ask(postgres_url, case.table)
            if delivery == "two_phase" and case.blocks:
                with pytest.raises(ConfigError, match="transactions of sibling tasks would wait"):
                    sink_of(postgres_url, delivery).open("p", batch([], [], case.kind).schema)
                cells.append("refused as it opens")
                continue
            said = _judge(postgres_url, delivery, case)
            assert reason in ("", said), case
            reason = said
            cells.append("yes")
        lines.append(f"| {case.what} | {reason} | {' | '.join(cells)} |")
    assert_renewed(PAGE, request.node.name, "\n".join(lines))


def _judge(url: str, delivery: str, case: Case) -> str:
    """Both ways with that row; returns the reason that the dead letter has."""
    there = taken(url)
    rows = batch([1, 2, 3], case.values, case.kind)
    with Epochs(sink_of(url, delivery, "fail"), rows.schema) as epochs, pytest.raises(BadRecord):
        epochs.run(rows)
    assert taken(url) == there, f"{case}: nothing was written"
    with Epochs(sink_of(url, delivery), rows.schema) as epochs:
        epochs.run(rows)
    assert taken(url) == sorted([*there, 1, 3]), case
    assert dead(url) == [2], case
    assert_nothing_waits(url)
    ((reason, state),) = ask(url, f"SELECT reason, sqlstate FROM {LETTERS}")
    return f"{reason.partition(';')[0]}" + (f" ({state})" if state else "")


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_bad_rows_among_many_cost_only_themselves(postgres_url: str, delivery: str) -> None:
    """Values that the column cannot hold are refused on the way in, others by the constraint, in the merge."""
    ask(postgres_url, "CREATE TABLE t (id bigint, v varchar(3) CHECK (v <> 'no'))")
    values = ["no" if i % 997 == 5 else "long" if i % 1499 == 7 else "ok" for i in range(30_000)]
    bad = [i for i, value in enumerate(values) if value != "ok"]
    with Epochs(sink_of(postgres_url, delivery), batch([], [], pa.string()).schema) as epochs:
        epochs.run(
            *(
                [batch(range(a, a + 5000), values[a : a + 5000], pa.string()) for a in (b, b + 5000)]
                for b in range(0, 30_000, 10_000)
            )
        )
    assert dead(postgres_url) == bad
    assert taken(postgres_url) == sorted(set(range(30_000)) - set(bad))
    assert ask(postgres_url, f"SELECT DISTINCT epoch, generation FROM {LETTERS}") == [(1, 1)]
    assert_nothing_waits(postgres_url)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_more_bad_rows_than_the_ceiling_stop_the_pipeline(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint, v bigint CHECK (v > 0))")
    with Epochs(sink_of(postgres_url, delivery, rejects_max=5), SCHEMA) as epochs:
        with raises(BadRecord, "too-many-rejects"):
            epochs.run(batch(range(100), [-1] * 100))
        assert (taken(postgres_url), dead(postgres_url)) == ([], [])
        epochs.run(batch(range(10), [1, -1] * 5))
        assert dead(postgres_url) == [1, 3, 5, 7, 9]
    assert_nothing_waits(postgres_url)


def test_the_ceiling_of_a_staged_epoch_counts_the_bad_rows_of_all_its_tasks(postgres_url: str) -> None:
    """Rows that the stage refuses are put aside by each task for itself; the merge itself refuses none here."""
    ask(postgres_url, "CREATE TABLE t (id bigint, v text)")
    good, bad = batch([1], ["a"], pa.string()), batch([2, 3, 4], ["a", "\0", "\0"], pa.string())
    with Epochs(sink_of(postgres_url, "staged", rejects_max=3), good.schema) as epochs:
        with raises(BadRecord, "too-many-rejects"):
            epochs.run(bad, good, bad)
        assert (taken(postgres_url), dead(postgres_url)) == ([], [])
        epochs.run(bad, good)
    assert (taken(postgres_url), dead(postgres_url)) == ([1, 2], [3, 4])
    assert_nothing_waits(postgres_url)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_dead_letter_says_why_and_where_its_row_came_from(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint, v text CHECK (v <> 'no'))")
    rows = pa.record_batch(
        {
            "topic": pa.array(["orders"] * 4),
            "id": pa.array([1, 2, 3, 4], pa.int64()),
            "offset": pa.array([10, 11, 12, 13], pa.int64()),
            "v": pa.array(["a", "no", "\0", "d"]),
        }
    )
    sink = sink_of(postgres_url, delivery, source_position=("topic", "offset"))
    with Epochs(sink, rows.schema) as epochs:
        epochs.run(rows)
    assert ask(postgres_url, "SELECT * FROM t ORDER BY id") == [(1, "a"), (4, "d")]
    letters = ask(postgres_url, f"SELECT pipeline, sink, reason, position, row::text FROM {LETTERS} ORDER BY 3 DESC")
    assert [letter[:2] for letter in letters] == [("p", "t")] * 2
    assert letters[0][2].startswith('new row for relation "t" violates check constraint "t_v_check"')
    assert letters[0][3] == {"topic": "orders", "offset": 11}
    assert letters[1][2].startswith("invalid byte sequence for encoding")
    assert letters[1][3] == {"topic": "orders", "offset": 12}
    assert letters[1][4] == r'{"v": "\\u0000", "id": 3, "topic": "orders", "offset": 12}'


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_dead_letter_shows_bytes_that_are_no_text(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint, v text)")
    rows = batch([1, 2], [b'\\ "\xff\x00\xc3', "é".encode()])
    with Epochs(sink_of(postgres_url, delivery, source_position="v"), rows.schema) as epochs:
        epochs.run(rows)
    assert taken(postgres_url) == [2]
    wanted = r'\ "\xff\u0000\xc3'
    assert ask(postgres_url, f"SELECT row->>'v', position->>'v' FROM {LETTERS}") == [(wanted, wanted)]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_versions_that_are_refused_leave_the_older_good_one(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, at bigint, v bigint CHECK (v > 0))")
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("v", pa.int64())])
    rows = pa.record_batch([[1, 1, 2, None, 3], [1, 2, 1, 1, 1], [5, -5, 5, 5, -5]], schema=schema)
    with Epochs(sink_of(postgres_url, delivery, mode="upsert", key="id", order="at"), schema) as epochs:
        epochs.run(rows)
    assert ask(postgres_url, "SELECT * FROM t ORDER BY id") == [(1, 1, 5), (2, 1, 5)]
    reasons = ask(postgres_url, f"SELECT row->>'id', row->>'at', left(reason, 12) FROM {LETTERS} ORDER BY 1, 2")
    assert reasons == [("1", "2", "new row for "), ("3", "1", "new row for "), (None, "1", "column id: n")]
    assert_nothing_waits(postgres_url)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_dead_letters_of_an_attempt_that_was_lost_are_written_once(postgres_url: str, delivery: str) -> None:
    """The first run's work vanishes before the decision: the epoch's writers run again."""
    ask(postgres_url, "CREATE TABLE t (id bigint, v text CHECK (v <> 'no'))")
    rows = batch([1, 2, 3], ["a", "no", "\0"], pa.string())
    lost = []

    def lose() -> None:
        if not lost:
            lost.append(True)
            for (gid,) in ask(postgres_url, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
                ask(postgres_url, f"ROLLBACK PREPARED '{gid}'")
            ask(postgres_url, "DELETE FROM onefold_sinks.onefold_staged")

    sink = sink_of(postgres_url, delivery)
    with Epochs(sink, rows.schema) as epochs:
        epochs.run(rows, doing=lose)
    assert lost
    assert (taken(postgres_url), dead(postgres_url)) == ([1], [2, 3])
    assert_nothing_waits(postgres_url)


def test_a_row_that_needs_a_later_row_is_no_dead_letter(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, v bigint REFERENCES t)")
    with Epochs(sink_of(postgres_url, "staged", rejects_max=5), SCHEMA) as epochs:
        epochs.run(batch([1, 2, 3, 4, 5], [5, 99, 4, None, None]))
        assert taken(postgres_url) == [1, 3, 4, 5]
        assert dead(postgres_url) == [2]
        ask(postgres_url, f"TRUNCATE {LETTERS}")
        epochs.run(batch(range(10, 60), [*[59] * 48, 99, None]))
    assert taken(postgres_url) == [1, 3, 4, 5, *range(10, 58), 59]
    assert dead(postgres_url) == [58]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_rows_and_positions_with_odd_names_and_values_become_dead_letters(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, r text CHECK (r <> 'no'), s text, t bigint)")
    rows = pa.record_batch(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "r": pa.array(["no", "ok", "ok"]),
            "s": pa.array(["a", "b", "c"]),
            "t": pa.array([1, 1, 1], pa.int64()),
            "it's %": pa.array(["x", "y", "\0"]),
        }
    )
    sink = sink_of(postgres_url, delivery, mode="upsert", key="id", order="t", source_position="it's %")
    with Epochs(sink, rows.schema) as epochs:
        epochs.run(rows)
    assert taken(postgres_url) == [2]
    letters = ask(postgres_url, f"SELECT row->>'r', row->>'s', position FROM {LETTERS} ORDER BY 2")
    assert letters == [("no", "a", {"it's %": "x"}), ("ok", "c", {"it's %": "\\u0000"})]


def test_dead_letters_go_where_they_are_told_to(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint, v bigint CHECK (v > 0)); CREATE TABLE wrong (id bigint)")
    with raises(ConfigError, "rejects-table-columns"):
        sink_of(postgres_url, "staged", rejects_table="wrong").open("p", SCHEMA)
    with Epochs(sink_of(postgres_url, "staged", rejects_table="public.Refused %"), SCHEMA) as epochs:
        epochs.run(batch([1, 2], [1, -1]))
    assert ask(postgres_url, """SELECT row->>'id' FROM "Refused %" """) == [("2",)]


def test_that_dead_letters_may_be_written_is_known_before_there_are_any(postgres_url: str) -> None:
    sink_of(postgres_url, "two_phase", rejects_table="letters").open("p", SCHEMA).close()
    ask(postgres_url, "CREATE ROLE writer LOGIN; GRANT INSERT ON t TO writer; CREATE SCHEMA s AUTHORIZATION writer")
    writers = sink_of(postgres_url.replace("onefold@", "writer@"), "two_phase", rejects_table="letters", ledger="s")
    try:
        with raises(ConfigError, "table-permission", "'writer'"):
            writers.open("q", SCHEMA)
        ask(postgres_url, "GRANT INSERT ON letters TO writer")
        writers.open("q", SCHEMA).close()
    finally:
        ask(postgres_url, "DROP OWNED BY writer CASCADE; DROP ROLE writer")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_deletion_that_is_refused_is_a_dead_letter_that_says_that_it_deletes(
    postgres_url: str, delivery: str
) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, at bigint); CREATE TABLE child (t bigint REFERENCES t)")
    ask(postgres_url, "INSERT INTO t VALUES (1, 1), (2, 1), (3, 1); INSERT INTO child VALUES (1)")
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("it's gone", pa.bool_())])
    changes: dict[str, Any] = {"mode": "upsert", "key": "id", "order": "at", "delete_when_true": "it's gone"}
    with Epochs(sink_of(postgres_url, delivery, **changes), schema) as epochs:
        epochs.run(pa.record_batch([[1, 2, 3], [2, 2, 2], [True, True, False]], schema=schema))
        assert ask(postgres_url, "SELECT * FROM t ORDER BY id") == [(1, 1), (3, 2)]
        assert ask(postgres_url, f"SELECT row FROM {LETTERS}") == [({"id": 1, "at": 2, "it's gone": True},)]
        epochs.run(pa.record_batch([[1], [1], [False]], schema=schema))
    assert ask(postgres_url, "SELECT * FROM t ORDER BY id") == [(1, 1), (3, 2)]


def test_a_table_that_is_made_has_the_order_though_it_is_also_a_position(postgres_url: str) -> None:
    sink = sink_of(postgres_url, "staged", mode="upsert", key="id", order="v", source_position="v")
    with Epochs(sink, SCHEMA) as epochs:
        epochs.run(batch([1, 1], [1, 2]))
    assert ask(postgres_url, "SELECT * FROM t") == [(1, 2)]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"on_error": "ignore"}, "option-value"),
        ({"on_error": "fail", "rejects_table": "x"}, "options-conflict"),
        ({"on_error": "fail", "source_position": "x"}, "options-conflict"),
        ({"rejects_max": -1}, "option-value"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        sink_of("postgresql://localhost/x", "staged", **settings)


def test_a_position_must_be_a_column_of_the_rows(postgres_url: str) -> None:
    with raises(SchemaMismatch, "column-type", "source_position='nowhere'"):
        sink_of(postgres_url, "staged", source_position="nowhere").open("p", SCHEMA)
