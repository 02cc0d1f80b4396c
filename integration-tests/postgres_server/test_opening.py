"""What the Postgres sink takes, makes and refuses when it opens."""

from __future__ import annotations

import pyarrow as pa
import pytest
from harness.calls import DELIVERIES, SCHEMA, Ask, decided, merge, prepared, task

from onefold.core.contract import SinkKind
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers


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
    lines = caught.value.message.splitlines()[2:]
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
