"""A dead letter's record is sent again once, whatever crashes in between; what is not whole is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from harness.definitions import named, piped
from harness.errors import raises
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.core import InDoubt
from onefold.operate.letters import resend
from onefold.operate.letters.browse import newest
from onefold.operate.letters.letter import MarkState, NotSendable, RecordPlace
from onefold.operate.letters.resend import HEADER, send_again
from onefold.pipeline import Pipeline
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import KafkaSource

pytestmark = pytest.mark.servers
NOT_UTF8 = b"\xff\x00no JSON"
HEADERS = '[{"key": "trace", "value": "/wA="}, {"key": "empty", "value": null}]'


@pytest.fixture
def pipeline(kafka_server: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path) -> Pipeline:
    """A pipeline with two dead letters in its table, of offsets 7 and 8 of partition 1; of the second only a part."""
    topic = kafka_topic(partitions=2)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA onefold_sinks")
        connection.execute(
            "CREATE TABLE dead (source_topic text, source_partition int, source_offset bigint,"
            " source_timestamp timestamptz, key bytea, value bytea, headers jsonb, reason text, pipeline text,"
            " epoch bigint)"
        )
        for offset, reason in ((7, "no JSON"), (8, "cut to 3 of 9000000 bytes: too large")):
            connection.execute(
                "INSERT INTO dead VALUES (%s, 1, %s, 'infinity', %s, %s, %s, %s, 'p', 4)",
                (topic, offset, b"k\x00", NOT_UTF8, HEADERS, reason),
            )
    source = KafkaSource(topic, bootstrap_servers=kafka_server.bootstrap_servers, on_error="dead_letter")
    sinks = [PostgresSink(postgres_url, "rows")]
    letters = PostgresSink(postgres_url, "dead", delivery="two_phase")
    return piped("p", source=source, sinks=sinks, dead_letters=letters, directory=str(tmp_path))


def place_of(pipeline: Pipeline, offset: int = 7) -> RecordPlace:
    return RecordPlace(pipeline.topic.topics[0], 1, offset)


def test_the_command_sends_all_that_can_be_sent_once_and_says_what_was_not(pipeline: Pipeline) -> None:
    topic, file = place_of(pipeline).topic, named(pipeline)

    def run(*options: str, input: str = "") -> Result:
        return CliRunner().invoke(app, ["letters", file, *options], input=input, catch_exceptions=False)

    declined = run("--send-all", input="n\n")
    assert declined.exit_code == 1 and "Send 1 of 2 letters again?" in declined.output and sent(pipeline) == []
    done = run("--send-all", "--yes")
    assert done.exit_code == 0 and f"{topic}:1=7: sent again, at offset 0" in done.output
    assert "sent" in run().output.splitlines()[-1] + run().output.splitlines()[-2]
    again = run("--send", f"{topic}:1=7", "--send", f"{topic}:1=8", "--json")
    assert again.exit_code == 1
    assert [each["error"] for each in json.loads(again.stdout)] == ["letter-sent", "letter-cut"]
    assert len(sent(pipeline)) == 1


def sent(pipeline: Pipeline) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Key, value and headers of all committed records of partition 1."""
    topic = place_of(pipeline).topic
    config = {"bootstrap.servers": pipeline.topic.bootstrap_servers, "group.id": "t", "enable.partition.eof": True}
    consumer, found = Consumer(config), []
    consumer.assign([TopicPartition(topic, 1, 0)])
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append((message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def forget(pipeline: Pipeline) -> None:
    """As if the process had been killed before the mark said that it was sent."""
    url = pipeline.sinks[0].url  # type: ignore[attr-defined]
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE onefold_sinks.onefold_sent_again SET state = 'sending', sent_offset = NULL")


def test_the_record_arrives_as_it_was_with_a_header_that_says_where_it_comes_from(pipeline: Pipeline) -> None:
    place = place_of(pipeline)
    mark = send_again(pipeline, place)
    assert (mark.state, mark.sent_offset) == (MarkState.SENT, 0)
    headers = [("trace", b"\xff\x00"), ("empty", None), (HEADER, str(place).encode())]
    assert sent(pipeline) == [(b"k\x00", NOT_UTF8, headers)]
    (first, second) = newest(pipeline, 50).letters
    assert {first.place, second.place} == {place, place_of(pipeline, 8)}
    assert [one.mark for one in (first, second) if one.place == place] == [mark]


def test_it_is_sent_once_however_often_it_is_asked_for(pipeline: Pipeline) -> None:
    send_again(pipeline, place_of(pipeline))
    with raises(NotSendable, "letter-sent") as refused:
        send_again(pipeline, place_of(pipeline))
    assert refused.value.code == "letter-sent"
    assert len(sent(pipeline)) == 1


def test_a_crash_after_it_was_sent_is_found_out_by_the_next_call(pipeline: Pipeline) -> None:
    send_again(pipeline, place_of(pipeline))
    forget(pipeline)
    (mark,) = (one.mark for one in newest(pipeline, 50).letters if one.place == place_of(pipeline))
    assert mark is not None and mark.state is MarkState.SENDING
    assert send_again(pipeline, place_of(pipeline)).sent_offset == 0
    assert len(sent(pipeline)) == 1


def test_a_crash_before_it_was_sent_has_the_next_call_send_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> int:
        raise InDoubt("crashed", "as a test wants it")

    with monkeypatch.context() as patch:
        patch.setattr(resend, "_sent", crash)
        with pytest.raises(InDoubt):
            send_again(pipeline, place_of(pipeline))
    assert sent(pipeline) == []
    assert send_again(pipeline, place_of(pipeline)).state is MarkState.SENT
    assert len(sent(pipeline)) == 1


def test_an_older_attempt_that_comes_back_sends_nothing_any_more(pipeline: Pipeline) -> None:
    place = place_of(pipeline)
    zombie: Producer = resend._started(pipeline.topic, "p", place)
    zombie.produce(place.topic, b"late", partition=1)
    zombie.flush(10)
    send_again(pipeline, place)
    with pytest.raises(KafkaException, match=r"fenced|epoch"):
        zombie.commit_transaction(10)
    assert [value for _, value, _ in sent(pipeline)] == [NOT_UTF8]


def test_what_is_not_whole_or_not_there_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    for place, code in ((place_of(pipeline, 8), "letter-cut"), (place_of(pipeline, 9), "letter-unknown")):
        with pytest.raises(NotSendable) as refused:
            send_again(pipeline, place)
        assert refused.value.code == code
    topic = KafkaSink("dead", bootstrap_servers=pipeline.topic.bootstrap_servers, format="raw")
    more: dict[str, Any] = {"source": pipeline.topic, "sinks": pipeline.sinks, "directory": str(tmp_path)}
    elsewhere = piped("q", dead_letters=topic, **more)
    assert newest(elsewhere, 50).elsewhere == ["dead"]
    with raises(NotSendable, "letters-elsewhere"):
        send_again(elsewhere, place_of(pipeline))
    assert sent(pipeline) == []
