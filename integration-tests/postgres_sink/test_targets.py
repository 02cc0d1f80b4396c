"""Every odd kind of target, there and back in both deliveries; docs/postgres-targets.md shows the same list."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.passwords import plain_url
from harness.pipeline_drivers import Epochs
from harness.renewing import assert_renewed
from harness.tables.postgres_targets import KINDS, TYPES, TYPES_SETUP, Kind, tables

from onefold.core.errors import ConfigError, SchemaMismatch, WorkLost
from onefold.sinks import PostgresSink

Sql = Callable[[str], list[Any]]
DELIVERIES = ["two_phase", "staged"]
PAGE = Path(__file__).parents[2] / "docs" / "postgres-targets.md"


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> Iterator[str]:
    """One database for all kinds: each has a schema of its own there."""
    name = f"targets_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        connection.execute("SET allow_in_place_tablespaces = on")
        connection.execute(f"CREATE TABLESPACE {name} LOCATION ''")
        yield plain_url(postgres_server, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP TABLESPACE {name}")


@pytest.fixture(scope="module")
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


class Place:
    """A schema with an odd name, and statements in which `{s}` stands for it."""

    def __init__(self, connection: psycopg.Connection[Any], database: str) -> None:
        self.schema = f'Odd."%s {uuid.uuid4().hex[:8]}'
        self.sql = '"' + self.schema.replace('"', '""') + '"'
        self.table, self.url, self._connection = f'{self.sql}."t"', database, connection
        self("CREATE SCHEMA {s}")

    def __call__(self, statement: str) -> list[Any]:
        tablespace = self.url.rpartition("/")[2]
        text = statement.replace("{s}", self.sql).replace("{tablespace}", tablespace)
        cursor = self._connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []

    def as_plain_role(self) -> str:
        """A URL for a role that may insert into the target, and owns what onefold keeps."""
        role = f"role_{uuid.uuid4().hex[:8]}"
        self(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'; CREATE SCHEMA {role} AUTHORIZATION {role}")
        self(f"GRANT USAGE ON SCHEMA {{s}} TO {role}; GRANT INSERT ON ALL TABLES IN SCHEMA {{s}} TO {role}")
        options = f"-c search_path={role}"
        return psycopg.conninfo.make_conninfo(self.url, user=role, password="hunter2", options=options)


@pytest.fixture
def place(connection: psycopg.Connection[Any], database: str) -> Place:
    return Place(connection, database)


def run(sink: PostgresSink, pipeline: str, rows: pa.RecordBatch) -> None:
    """One epoch of two tasks, with half of the rows each."""
    half = rows.num_rows // 2
    with Epochs(sink, rows.schema, pipeline=pipeline) as epochs:
        epochs.run(rows.slice(0, half), rows.slice(half))


@pytest.mark.servers
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_target_does_what_the_page_says(place: Place, kind: Kind) -> None:
    (version,) = place("SHOW server_version_num")[0]
    if int(version) // 10_000 < kind.since:
        pytest.skip(f"Postgres has it since version {kind.since}, and this one is {version}")
    place(kind.setup)
    rows = pa.record_batch(kind.rows)
    url, more = place.url, {}
    if kind.plain_role:
        url = place.as_plain_role()
        more["ledger"] = dict(psycopg.conninfo.conninfo_to_dict(url))["user"] + "_books"
        place(f"CREATE SCHEMA {more['ledger']} AUTHORIZATION {more['ledger'][:-6]}")
    if kind.refused is not None:
        for delivery in ["auto", *DELIVERIES]:
            with pytest.raises(ConfigError) as caught:
                PostgresSink(url, place.table, delivery=delivery, **more).open(place.schema[-8:], rows.schema)
            assert kind.refused in str(caught.value)
        return
    auto = PostgresSink(url, place.table, **more)
    assert auto.guarantee().mode == kind.auto
    auto.open(place.schema[-8:], rows.schema).close()
    assert kind.because in (auto.delivery_reason or "")
    for delivery in DELIVERIES:
        sink = PostgresSink(url, place.table, delivery=delivery, **more)
        pipeline = f"{delivery} {place.schema[-8:]}"
        if delivery == "two_phase" and kind.not_two_phase is not None:
            with pytest.raises(ConfigError) as caught:
                sink.open(pipeline, rows.schema)
            assert kind.not_two_phase in str(caught.value)
        elif kind.stops is not None:
            with pytest.raises(WorkLost) as lost:
                run(sink, pipeline, rows)
            assert kind.stops in str(lost.value)
        else:
            run(sink, pipeline, rows)
            assert place(kind.select) == kind.read
            place("DROP SCHEMA {s} CASCADE; CREATE SCHEMA {s}")
            place(kind.setup)


@pytest.mark.servers
@pytest.mark.parametrize("delivery", [*DELIVERIES, "direct"])
def test_the_columns_that_the_page_accepts_give_every_value_back(place: Place, delivery: str) -> None:
    taken = [column for column in TYPES if column.read is not None]
    names = [f"c{number}" for number in range(len(taken))]
    place(TYPES_SETUP)
    place(f"CREATE TABLE {{s}}.t ({', '.join(f'{n} {c.sql}' for n, c in zip(names, taken, strict=True))})")
    values = [pa.array([column.value, None], column.arrow) for column in taken]
    run(PostgresSink(place.url, place.table, delivery=delivery), place.schema[-8:], pa.record_batch(values, names))
    there, absent = place("SELECT * FROM {s}.t ORDER BY c0 NULLS LAST")
    assert list(there) == [column.read for column in taken]
    assert list(absent) == [None] * len(taken)


@pytest.mark.servers
def test_the_columns_that_the_page_refuses_are_all_named_at_once(place: Place) -> None:
    refused = [column for column in TYPES if column.read is None]
    place(TYPES_SETUP)
    place(f"CREATE TABLE {{s}}.t ({', '.join(f'c{n} {column.sql}' for n, column in enumerate(refused))})")
    schema = pa.schema([(f"c{n}", column.arrow) for n, column in enumerate(refused)])
    for delivery in DELIVERIES:
        with pytest.raises(SchemaMismatch) as caught:
            PostgresSink(place.url, place.table, delivery=delivery).open("types", schema)
        lines = [line.split()[1] for line in str(caught.value).splitlines() if "cannot take every such value" in line]
        assert lines == schema.names


@pytest.mark.docs
def test_the_page_shows_what_was_tried() -> None:
    assert_renewed(PAGE, "test_the_page_shows_what_was_tried", "\n".join(tables()))
