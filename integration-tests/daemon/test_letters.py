"""The newest dead letters of tables in a real Postgres, and the bound of what reading them costs it."""

from __future__ import annotations

import json
import time
from contextlib import closing

import psycopg
import pytest
from harness.definitions import named, piped
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.clients.postgres import sessions
from onefold.core import ConfigError, Retriable
from onefold.operate.letters import browse
from onefold.operate.letters.browse import newest, reasons, whole
from onefold.operate.letters.letter import RecordPlace
from onefold.pipeline import Pipeline
from onefold.sinks import PostgresSink
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.dead_letters import DeadLetter, LetterOrigin
from onefold.sinks.postgres.naming import TargetName
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
        connection.commit()
        with closing(sessions.take(sessions.conninfo(postgres_url, "p", 10))) as session:
            table = dead_letters.create(session, TargetName("onefold_sinks", "onefold_dead_letters"))
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


def test_they_are_counted_by_reason_and_those_of_one_reason_are_listed(pipeline: Pipeline, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE dead SET reason = 'a % sign_' || chr(10) || epoch WHERE source_offset = 10")
        connection.execute("INSERT INTO dead SELECT * FROM dead")
        connection.execute("UPDATE dead SET pipeline = 'another' WHERE source_offset = 31")
    found = [(each.sink, each.reason, each.letters, each.first_epoch, each.last_epoch) for each in reasons(pipeline)]
    assert found == [
        ("dead", "no JSON", 14, 1, 3),
        ("rows", "refused", 6, 1, 3),
        ("dead", "a % sign_\n1", 2, 1, 1),
    ]
    assert [each.place and each.place.offset for each in newest(pipeline, 50, "% sign_").letters] == [10, 10]
    assert newest(pipeline, 50, "' OR ''='").letters == []
    assert len(newest(pipeline, 50, "refused").letters) == 6


def test_all_that_is_kept_of_one_is_shown(pipeline: Pipeline, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE dead SET value = convert_to(repeat('x', 10000), 'UTF8') WHERE source_offset = 12")
    assert 10_000 * "x" in shown(pipeline, "--show", "t:0=12")
    letter = whole(pipeline, RecordPlace("t", 0, 12))
    assert letter is not None and letter.value == 10_000 * b"x"
    assert whole(pipeline, RecordPlace("t", 1, 12)) is None


def shown(pipeline: Pipeline, *options: str, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["letters", named(pipeline), *options], catch_exceptions=False)
    assert ran.exit_code == code, ran.output
    return ran.stdout


def test_the_command_lists_counts_and_shows_them(pipeline: Pipeline, postgres_url: str) -> None:
    assert "t:0=32" in shown(pipeline) and "no JSON" in shown(pipeline, "--limit", "1")
    assert len(json.loads(shown(pipeline, "--json"))["letters"]) == 15
    assert [each["letters"] for each in json.loads(shown(pipeline, "--by-reason", "--json"))] == [9, 6]
    assert "1 to 3" in shown(pipeline, "--by-reason")
    assert "value: 3\n" in shown(pipeline, "--show", "t:0=30")
    assert json.loads(shown(pipeline, "--show", "t:0=30", "--json"))["place"] == "t:0=30"
    assert shown(pipeline, "--reason", "nothing has it").strip() == "no dead letters"
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE dead SET reason = 'cut to 3 bytes', value = '\\x1b5b326a', headers = NULL")
    assert "\x1b" not in shown(pipeline)
    assert shown(pipeline, "--send-all", "--yes") == ""  # none of them: each is cut, or a row
    with raises(ConfigError, "letter-unknown"):
        shown(pipeline, "--show", "t:0=31")
    for wrong in (["--show", "t/0"], ["--send", "t:0"], ["--send", "t:0=-1"]):
        with raises(ConfigError, "option-value"):
            shown(pipeline, *wrong)
    with raises(ConfigError, "options-conflict"):
        shown(pipeline, "--by-reason", "--send-all")
    with raises(ConfigError, "options-conflict"):
        shown(pipeline, "--by-reason", "--reason", "no JSON")


@pytest.mark.parametrize("table", ["dead", "onefold_sinks.onefold_dead_letters"])
def test_a_table_that_takes_long_to_read_is_an_error_in_time_and_the_server_ends_the_query(
    pipeline: Pipeline, postgres_url: str, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(browse, "WITHIN_S", 0.5)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        began_s = time.monotonic()
        with raises(Retriable, "letters-slow") as raised:
            newest(pipeline, 50)
        assert raised.value.code == "letters-slow" and time.monotonic() - began_s < 5
        running = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND datname = current_database()"
        assert len(connection.execute(running).fetchall()) == 1, "none but this one"
    assert len(newest(pipeline, 50).letters) == 15
