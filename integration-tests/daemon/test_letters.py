"""The newest dead letters of tables in a real Postgres, and the bound of what reading them costs it."""

from __future__ import annotations

import json
import time

import psycopg
import pytest
from harness.definitions import piped
from harness.errors import raises

from onefold.core import Retriable
from onefold.daemon.letters import bounded_queries
from onefold.daemon.letters.browse import newest
from onefold.pipeline import Pipeline
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.rejects import dead_letters
from onefold.sinks.postgres.rejects.dead_letters import DeadLetter, LetterOrigin
from onefold.sources import KafkaSource

pytestmark = pytest.mark.servers


@pytest.fixture
def pipeline(postgres_url: str, tmp_path: object) -> Pipeline:
    """A pipeline whose source and whose sink have letters of three epochs: three records and two rows in each."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA onefold_sinks")
        connection.execute(
            "CREATE TABLE dead (source_topic text, source_partition int, source_offset bigint,"
            " source_timestamp timestamptz, key bytea, value bytea, headers jsonb, reason text, pipeline text,"
            " epoch bigint)"
        )
        table = dead_letters.create(connection, TargetName("onefold_sinks", "onefold_dead_letters"))
        for epoch in (1, 2, 3):
            for offset in range(3):
                values = (offset % 2, 10 * epoch + offset, f"{epoch}", epoch)
                connection.execute(
                    "INSERT INTO dead VALUES ('t', %s, %s, now(), 'k', %s, '[]', 'no JSON', 'p', %s)", values
                )
            letters = [DeadLetter("refused", "22003", json.dumps({"id": n}), json.dumps({"n": n})) for n in (1, 2)]
            dead_letters.insert(connection, table, LetterOrigin("p", "rows", epoch, 1, 0), letters)
    source = KafkaSource("t", bootstrap_servers="127.0.0.1:1", format="raw", on_error="dead_letter")
    sinks = [PostgresSink(postgres_url, "rows", on_error="dead_letter")]
    letters_sink = PostgresSink(postgres_url, "dead", delivery="two_phase")
    return piped("p", source=source, sinks=sinks, dead_letters=letters_sink, directory=str(tmp_path))


def test_the_newest_of_each_sink_come_first_records_by_their_places(pipeline: Pipeline) -> None:
    found = newest(pipeline, 4).letters
    records = [(each.epoch, each.place.partition, each.place.offset) for each in found if each.place is not None]
    assert records[:3] == [(3, 0, 32), (3, 0, 30), (3, 1, 31)] and records[3][0] == 2
    rows = [(each.epoch, each.value) for each in found if each.place is None]
    assert [epoch for epoch, _ in rows] == [3, 3, 2, 2]
    assert {value for _, value in rows} == {b'{"n": 1}', b'{"n": 2}'}
    assert [each.epoch for each in found] == sorted((each.epoch for each in found), reverse=True)


@pytest.mark.parametrize("table", ["dead", "onefold_sinks.onefold_dead_letters"])
def test_a_table_that_takes_long_to_read_is_an_error_in_time_and_the_server_ends_the_query(
    pipeline: Pipeline, postgres_url: str, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(bounded_queries, "WITHIN_S", 0.5)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        began_s = time.monotonic()
        with raises(Retriable, "letters-slow") as raised:
            newest(pipeline, 50)
        assert raised.value.code == "letters-slow" and time.monotonic() - began_s < 5
        running = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND datname = current_database()"
        assert len(connection.execute(running).fetchall()) == 1, "none but this one"
    assert len(newest(pipeline, 50).letters) == 15
