"""A database with `CREATE PUBLICATION ... FOR ALL TABLES`, as Debezium makes it: Postgres updates and deletes no row
there that it could not name to a subscriber."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from harness.calls import DELIVERIES, Ask
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.tables.upserts import MARKED, SCHEMA, deleting, marked, rows, table, upsert

from onefold.core import ConfigError
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers

ALL_TABLES = "CREATE PUBLICATION dbz_publication FOR ALL TABLES"
WITHOUT_IDENTITY = "CREATE TABLE t (id bigint NOT NULL, version bigint, name text, CONSTRAINT one UNIQUE (id))"


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_sinks_start_write_and_put_rows_aside_where_all_tables_are_published(
    postgres_url: str, ask: Ask, delivery: str
) -> None:
    ask(ALL_TABLES)
    ask("CREATE TABLE t (id bigint, version bigint CHECK (version > 0), name text)")
    sink = PostgresSink(postgres_url, "t", delivery=delivery, on_error="dead_letter")
    with Epochs(sink, SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a"), (2, -1, "refused")))
        epochs.run(rows((3, 1, "c")))
    assert ask.ids() == [1, 3]
    assert ask("SELECT count(*) FROM onefold_sinks.onefold_dead_letters") == [(1,)]
    assert ask("DELETE FROM onefold_sinks.onefold_dead_letters RETURNING epoch") == [(1,)]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_upserts_with_deletions_go_into_a_new_table_where_all_tables_are_published(
    postgres_url: str, ask: Ask, delivery: str
) -> None:
    ask(ALL_TABLES)
    with Epochs(deleting(postgres_url, delivery), MARKED) as epochs:
        epochs.run(marked((1, 1, "a", False), (2, 1, "b", False)))
        epochs.run(marked((1, 2, None, True), (2, 2, "c", False)))
    assert table(postgres_url) == [(2, 2, "c")]


@pytest.mark.parametrize("publication", [ALL_TABLES, "CREATE PUBLICATION sent FOR TABLE t"])
def test_upserts_into_a_published_table_without_a_replica_identity_are_refused_until_it_has_one(
    postgres_url: str, ask: Ask, publication: str
) -> None:
    ask(WITHOUT_IDENTITY)
    ask(publication)
    with pytest.raises(ConfigError) as refused:
        upsert(postgres_url).open("p", SCHEMA)
    assert refused.value.code == "replica-identity-missing"
    assert "REPLICA IDENTITY FULL" in refused.value.message
    ask("ALTER TABLE t REPLICA IDENTITY USING INDEX one")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a")))
        epochs.run(rows((1, 2, "b")))
    assert table(postgres_url) == [(1, 2, "b")]


def test_a_partition_that_is_published_by_itself_needs_an_identity_and_others_need_none(
    postgres_url: str, ask: Ask
) -> None:
    ask("CREATE TABLE t (id bigint, version bigint, name text, UNIQUE (id)) PARTITION BY RANGE (id)")
    ask("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    ask("CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)")
    ask("ALTER TABLE low REPLICA IDENTITY FULL; CREATE PUBLICATION sent FOR TABLE low")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a"), (11, 1, "b")))
    ask("ALTER PUBLICATION sent ADD TABLE t")
    with raises(ConfigError, "replica-identity-missing") as refused:
        upsert(postgres_url).open("p", SCHEMA)
    assert refused.value.code == "replica-identity-missing"


def test_a_table_that_is_published_for_its_insertions_alone_needs_no_identity(postgres_url: str, ask: Ask) -> None:
    ask(WITHOUT_IDENTITY)
    ask("CREATE PUBLICATION sent FOR TABLE t WITH (publish = 'insert')")
    with Epochs(upsert(postgres_url), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a")))
        epochs.run(rows((1, 2, "b")))
    assert table(postgres_url) == [(1, 2, "b")]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_publication_that_is_made_in_the_middle_ends_the_pipeline_and_no_server_is_waited_for(
    postgres_url: str, ask: Ask, delivery: str
) -> None:
    ask(WITHOUT_IDENTITY)
    with Epochs(upsert(postgres_url, delivery), SCHEMA) as epochs:
        epochs.run(rows((1, 1, "a")))
        ask(ALL_TABLES)
        error = failed(epochs, rows((1, 2, "b")))
        assert "REPLICA IDENTITY FULL" in error.message
        ask("ALTER TABLE t REPLICA IDENTITY FULL")
        epochs.run(rows((1, 2, "b")))
    assert table(postgres_url) == [(1, 2, "b")]


def failed(epochs: Epochs, batch: pa.RecordBatch) -> Any:
    with pytest.raises(ConfigError) as ended:
        epochs.run(batch)
    return ended.value
