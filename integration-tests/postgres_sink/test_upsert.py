"""Upserts and deletions: whatever order versions come in, the newest one of each row stays."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.tables.upserts import DELETIONS, DELIVERIES, MARKED, SCHEMA, ask, deleting, marked, rows, table, upsert

from onefold.core import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_the_newest_version_wins_within_an_epoch_and_across_epochs(postgres_url: str, delivery: str) -> None:
    with Epochs(upsert(postgres_url, delivery), SCHEMA) as epochs:
        epochs.run(rows((1, 2, "b"), (1, 1, "a"), (2, 5, "x"), (1, 3, "c")), rows((3, 1, "y")))
        assert table(postgres_url) == [(1, 3, "c"), (2, 5, "x"), (3, 1, "y")]
        epochs.run(rows((1, 2, "late"), (2, 6, "newer")), rows((3, 1, "equal"), (4, 1, "new")))
        assert table(postgres_url) == [(1, 3, "c"), (2, 6, "newer"), (3, 1, "y"), (4, 1, "new")]
    assert ask(postgres_url, "SELECT * FROM pg_prepared_xacts") == []
    assert ask(postgres_url, "SELECT * FROM onefold_sinks.onefold_staged") == []


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_deletion_keeps_older_versions_out_and_lets_newer_ones_in(postgres_url: str, delivery: str) -> None:
    with Epochs(deleting(postgres_url, delivery), MARKED) as epochs:
        epochs.run(marked((1, 1, "a", False), (2, 1, "b", None), (3, 9, "c", False)))
        epochs.run(marked((1, 2, None, True), (2, 1, None, True), (3, 5, None, True), (4, 7, None, True)))
        assert table(postgres_url) == [(3, 9, "c")], "an equal order deletes, an older one does not"
        epochs.run(marked((1, 1, "late", False), (2, 1, "late", False), (4, 6, "late", False), (4, 8, "back", False)))
        assert table(postgres_url) == [(3, 9, "c"), (4, 8, "back")]
        epochs.run(marked((4, 7, "late", False), (1, 3, "back", False)))
        assert table(postgres_url) == [(1, 3, "back"), (3, 9, "c"), (4, 8, "back")]


def test_a_null_can_be_the_deletion(postgres_url: str) -> None:
    with Epochs(upsert(postgres_url, delete_when_null="name"), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a"), (2, 1, "b")))
        epochs.run(rows((1, 2, None)))
        assert table(postgres_url) == [(2, 1, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_any_versions_in_any_order_and_any_division_end_in_the_same_table(postgres_url: str, delivery: str) -> None:
    """The last word on each key is its newest version; a deletion wins against an equal order."""
    chance = random.Random(delivery)
    versions = [(key, order) for key in range(40) for order in range(6)]
    for number in range(4):
        changes = [
            (key, order, f"{key}@{order}", chance.random() < 0.3)
            for key, order in versions
            for _ in range(chance.choice([0, 1, 1, 2]))
        ]
        newest: dict[int, tuple[int, bool, str]] = {}
        for key, order, name, is_deleted in changes:
            newest[key] = max(newest.get(key, (-1, False, "")), (order, is_deleted, name))
        wanted = [(key, order, name) for key, (order, gone, name) in sorted(newest.items()) if not gone]
        chance.shuffle(changes)
        name = f"t{number}"
        with Epochs(deleting(postgres_url, delivery, table=name), MARKED, pipeline=f"p{number}") as epochs:
            while changes:
                size = chance.randint(1, 120)
                part, changes = changes[:size], changes[size:]
                epochs.run(*(marked(*task) for task in _by_key(part, 3) if task))
        assert table(postgres_url, name) == wanted


def _by_key(changes: Sequence[Any], tasks: int) -> list[list[Any]]:
    return [[change for change in changes if change[0] % tasks == task] for task in range(tasks)]


def test_rows_that_were_there_with_no_order_are_older_than_any(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text)")
    ask(postgres_url, "INSERT INTO t VALUES (1, NULL, 'mine'), (2, NULL, 'mine'), (3, NULL, 'mine')")
    with Epochs(deleting(postgres_url), MARKED) as epochs:
        epochs.run(marked((1, 0, "theirs", False), (2, 0, None, True)))
    assert table(postgres_url) == [(1, 0, "theirs"), (3, None, "mine")]


def test_keys_and_orders_of_several_columns_with_odd_names(postgres_url: str) -> None:
    ask(postgres_url, 'CREATE TABLE "T%" ("a""b" text, "select" int, "o%" date, n int, UNIQUE ("select", "a""b"))')
    schema = pa.schema([('a"b', pa.string()), ("select", pa.int32()), ("o%", pa.date32()), ("n", pa.int32())])
    key, order = ('a"b', "select"), ("o%", "n")
    with raises(ConfigError, "options-conflict", "'n'"):
        upsert(postgres_url, table="T%", key=key, order=order, delete_when_null="n")
    sink = upsert(postgres_url, table="T%", key=key, order=order, name="odd % name")
    with Epochs(sink, schema) as epochs:
        epochs.run(rows(("x", 1, 10, 5), ("x", 1, 10, 6), ("x", 2, 1, 1), ("y", 1, 1, 1), schema=schema))
        epochs.run(rows(("x", 1, 9, 9), ("x", 1, 10, 5), ("y", 1, 2, 0), schema=schema))
    found = ask(postgres_url, 'SELECT "a""b", "select", n FROM "T%" ORDER BY 1, 2')
    assert found == [("x", 1, 6), ("x", 2, 1), ("y", 1, 0)]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_texts_are_compared_as_the_tables_own_collations_do(postgres_url: str, delivery: str) -> None:
    """By "C", B is before a; by most databases' default it isn't, and that is what a plain column would have."""
    ask(
        postgres_url,
        """CREATE SCHEMA "Odd %"; CREATE COLLATION "Odd %".bytes FROM "C";
           CREATE DOMAIN "Odd %".word AS text COLLATE "C";
           CREATE TABLE t (id text COLLATE "C", k text COLLATE "Odd %".bytes, version "Odd %".word, PRIMARY KEY (id, k))
        """,
    )
    schema = pa.schema([*((name, pa.string()) for name in ("id", "k", "version")), ("gone", pa.bool_())])
    sink = upsert(postgres_url, delivery, key=("id", "k"), order="version", delete_when_true="gone")
    for _ in range(2):  # what the first life has made suits the second
        with Epochs(sink, schema) as epochs:
            epochs.run(rows(("x", "k", "B", False), ("x", "k", "a", False), ("y", "k", "a", False), schema=schema))
            assert table(postgres_url) == [("x", "k", "a"), ("y", "k", "a")]
            epochs.run(rows(("x", "k", "B", True), ("y", "k", "a", True), ("y", "k", "B", False), schema=schema))
            assert table(postgres_url) == [("x", "k", "a")]
        collations = {"id": "C", "k": "bytes", "version": "C"}
        assert set(ask(postgres_url, COLLATIONS)) == {
            (is_stage, *c) for is_stage in (True, False) for c in collations.items()
        }
        ask(postgres_url, f"TRUNCATE t, {ask(postgres_url, DELETIONS)[0][0]}")


COLLATIONS = """
SELECT starts_with(relname, 'onefold_stage_'), attname, collname FROM pg_attribute
JOIN pg_class c ON c.oid = attrelid JOIN pg_collation k ON k.oid = attcollation
WHERE relname ~ '^onefold_(stage|deleted)_' AND relkind = 'r'
"""


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_upserts_reach_the_partitions_of_a_table(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text) PARTITION BY RANGE (id)")
    ask(postgres_url, "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    ask(postgres_url, "CREATE TABLE rest PARTITION OF t DEFAULT")
    with Epochs(deleting(postgres_url, delivery), MARKED) as epochs:
        epochs.run(marked((1, 1, "a", False), (20, 1, "b", False)))
        epochs.run(marked((1, 2, "c", False), (20, 2, None, True)))
    assert table(postgres_url) == [(1, 2, "c")]


def test_a_row_that_somebody_else_inserts_meanwhile_is_merged_with(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text)")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs, psycopg.connect(postgres_url) as other:

        def insert_beside_it() -> None:
            other.execute("INSERT INTO t VALUES (1, 5, 'theirs, newer'), (2, 5, 'theirs, older')")
            threading.Timer(1.0, other.commit).start()  # the merge waits for it, and finds the key taken

        epochs.run(rows((1, 4, "ours"), (2, 6, "ours"), (3, 1, "ours")), doing=insert_beside_it)
    assert table(postgres_url) == [(1, 5, "theirs, newer"), (2, 6, "ours"), (3, 1, "ours")]


def test_that_holds_in_a_partition_too_that_came_when_the_sink_was_open(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text) PARTITION BY RANGE (id)")
    ask(postgres_url, "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs, psycopg.connect(postgres_url) as other:
        ask(postgres_url, "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)")

        def insert_beside_it() -> None:
            other.execute("INSERT INTO t VALUES (11, 5, 'theirs, newer'), (12, 5, 'theirs, older')")
            threading.Timer(1.0, other.commit).start()

        epochs.run(rows((11, 4, "ours"), (12, 6, "ours")), doing=insert_beside_it)
    assert table(postgres_url) == [(11, 5, "theirs, newer"), (12, 6, "ours")]


def test_a_partition_by_itself_takes_upserts_by_the_key_of_its_parent(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text) PARTITION BY RANGE (id)")
    ask(postgres_url, "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    with Epochs(upsert(postgres_url, table="low"), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a"), (1, 2, "b")))
        epochs.run(rows((1, 1, "late")))
    assert table(postgres_url) == [(1, 2, "b")]


def test_a_unique_value_passes_from_key_to_key_where_its_constraint_is_deferrable(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text UNIQUE)")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a"), (2, 1, "b")))
        passed = rows((1, 2, "b"), (2, 2, "a"))
        with raises(BadRecord, "row-refused"):
            epochs.run(passed)
        ask(postgres_url, "ALTER TABLE t DROP CONSTRAINT t_name_key, ADD UNIQUE (name) DEFERRABLE")
        epochs.run(passed)
    assert table(postgres_url) == [(1, 2, "b"), (2, 2, "a")]


def test_a_table_with_a_rule_takes_no_versions(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text)")
    ask(postgres_url, "CREATE RULE r AS ON UPDATE TO t DO INSTEAD NOTHING")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs, raises(ConfigError, "postgres-refuses"):
        epochs.run(rows((1, 1, "a")))
    assert table(postgres_url) == []


def test_a_null_in_key_or_order_is_refused(postgres_url: str) -> None:
    with Epochs(upsert(postgres_url), SCHEMA) as epochs:
        for bad in (None, 1, "a"), (1, None, "a"):
            with raises(BadRecord, "value-not-storable"):
                epochs.run(rows((7, 7, "good"), bad))
        epochs.run(rows((7, 7, "good")))
    assert table(postgres_url) == [(7, 7, "good")]


@pytest.mark.parametrize(
    ("setup", "settings", "code"),
    [
        ("CREATE TABLE t (id bigint, version bigint, name text)", {}, "unique-index-missing"),
        ("CREATE TABLE t (id bigint, version bigint, name text, UNIQUE (id, name))", {}, "unique-index-missing"),
        ("CREATE TABLE t (id bigint, version bigint, name text, UNIQUE (id) DEFERRABLE)", {}, "unique-index-missing"),
        (
            "CREATE TABLE t (id bigint, version bigint, name text); CREATE UNIQUE INDEX ON t (id) WHERE id > 0",
            {},
            "unique-index-missing",
        ),
        (
            "CREATE TABLE t (id bigint, version bigint, name text) PARTITION BY RANGE (id);"
            "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10); CREATE UNIQUE INDEX ON low (id)",
            {},
            "unique-index-missing",
        ),
        (
            "CREATE TABLE b (id bigint PRIMARY KEY, version bigint, name text); CREATE VIEW t AS SELECT * FROM b",
            {},
            "target-is-view",
        ),
        (
            "CREATE TABLE t (id bigint, version bigint, name uuid PRIMARY KEY)",
            {"key": "name", "delivery": "two_phase"},
            "two-phase-unsuitable",
        ),
        (  # as `CREATE COLLATION ... (provider = icu, deterministic = false)` does where the server is built with ICU
            """CREATE COLLATION loose FROM "C"; SET allow_system_table_mods = on;
               UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose';
               CREATE TABLE t (id bigint, version bigint, name text COLLATE loose PRIMARY KEY)""",
            {"key": "name", "delivery": "two_phase"},
            "two-phase-unsuitable",
        ),
        (
            "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text UNIQUE)",
            {"delivery": "two_phase"},
            "two-phase-unsuitable",
        ),
        ("SELECT", {"order": "missing"}, "column-missing"),
        ("SELECT", {"delete_when_true": "missing"}, "column-missing"),
        ("SELECT", {"delete_when_true": "name"}, "column-type"),
    ],
)
def test_what_upserts_need_is_asked_for_when_the_sink_opens(
    postgres_url: str, setup: str, settings: dict[str, Any], code: str
) -> None:
    ask(postgres_url, setup)
    with raises((ConfigError, SchemaMismatch), code):
        upsert(postgres_url, **settings).open("p", SCHEMA)


def test_auto_is_staged_for_upserts_and_two_phase_asks_for_a_key_in_one_task(postgres_url: str) -> None:
    auto = upsert(postgres_url, "auto")
    auto.open("p", SCHEMA)
    assert auto.delivery_reason == "upserts merge at once, so that no two tasks wait for the same key"
    assert auto.guarantee().mode == "staged"
    assert auto.partition_by() == ()
    two_phase = upsert(postgres_url, "two_phase")
    two_phase.open("p", SCHEMA)
    assert two_phase.partition_by() == ("id",)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_role_with_the_rights_that_the_page_names_needs_no_others(postgres_url: str, delivery: str) -> None:
    ask(postgres_url, "CREATE ROLE loader LOGIN; CREATE SCHEMA loader AUTHORIZATION loader")
    ask(postgres_url, "CREATE SCHEMA onefold_sinks AUTHORIZATION loader")
    url = postgres_url.replace("onefold@", "loader@")
    changed = "id bigint PRIMARY KEY, version bigint, name text"
    try:
        for made, rights, sink, change in (
            ("a (id bigint, version bigint, name text)", "INSERT", PostgresSink(url, "a", delivery=delivery), rows),
            (f"u ({changed})", "SELECT, INSERT, UPDATE", upsert(url, delivery, "u"), rows),
            (f"d ({changed})", "SELECT, INSERT, UPDATE, DELETE", deleting(url, delivery, table="d"), marked),
        ):
            ask(postgres_url, f"CREATE TABLE {made}; GRANT {rights} ON {sink.table} TO loader")
            end = (False,) if change is marked else ()
            with Epochs(sink, MARKED if change is marked else SCHEMA, pipeline=sink.table) as epochs:
                epochs.run(change((1, 1, "a", *end)))
                epochs.run(change((2, 1, "b", *end)))
            assert table(postgres_url, sink.table) == [(1, 1, "a"), (2, 1, "b")]
    finally:
        ask(postgres_url, "DROP OWNED BY loader CASCADE; DROP ROLE loader")


def test_rights_that_a_merge_needs_are_named(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE t (id bigint PRIMARY KEY, version bigint, name text)")
    ask(postgres_url, "CREATE ROLE merger LOGIN; GRANT INSERT ON t TO merger; CREATE SCHEMA s AUTHORIZATION merger")
    ask(postgres_url, "GRANT merger TO CURRENT_USER")
    url = postgres_url.replace("onefold@", "merger@")
    try:
        with raises(ConfigError, "table-permission"):
            upsert(url, ledger="s").open("p", SCHEMA)
        with raises(ConfigError, "table-permission"):
            deleting(url, ledger="s").open("p", MARKED)
        ask(postgres_url, "GRANT SELECT, UPDATE, DELETE ON t TO merger")
        deleting(postgres_url, ledger="s").open("q", MARKED).close()
        ask(postgres_url, "GRANT ALL ON ALL TABLES IN SCHEMA s TO merger")
        ((deletions,),) = ask(postgres_url, DELETIONS)
        ask(postgres_url, f"REVOKE UPDATE, DELETE ON {deletions} FROM merger")
        with raises(ConfigError, "tombstones-permission", '"s"'):
            deleting(url, ledger="s").open("p", MARKED)
    finally:
        ask(postgres_url, "DROP OWNED BY merger CASCADE; DROP ROLE merger")
