"""Dead letters that are sent again, beside those who may write where they are, or where they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from harness.definitions import piped
from harness.errors import raises

from onefold.core import InDoubt
from onefold.operate.letters import resend
from onefold.operate.letters.letter import MarkState, NotSendable, RecordPlace
from onefold.operate.letters.resend import HEADER, send_again
from onefold.pipeline import Pipeline
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

pytestmark = pytest.mark.servers
VALUE = b"no JSON"
COLUMNS = """source_topic text, source_partition int, source_offset bigint, source_timestamp timestamptz, key bytea,
 value bytea, headers jsonb, reason text, pipeline text, epoch bigint"""


@pytest.fixture
def letters(
    kafka_server: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path
) -> tuple[Pipeline, str]:
    """A pipeline with a dead letter of its topic, and one that names another topic."""
    topic, other = kafka_topic(partitions=1), kafka_topic(partitions=1)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"CREATE SCHEMA onefold_sinks; CREATE TABLE dead ({COLUMNS})".encode())
        for name in (topic, other):
            connection.execute(
                "INSERT INTO dead VALUES (%s, 0, 7, now(), 'k', %s, '[]', 'no JSON', 'p', 1)", (name, VALUE)
            )
    source = KafkaSource(topic, bootstrap_servers=kafka_server.bootstrap_servers, on_error="dead_letter")
    sinks, dead = [PostgresSink(postgres_url, "rows")], PostgresSink(postgres_url, "dead")
    return piped("p", source=source, sinks=sinks, dead_letters=dead, directory=str(tmp_path)), other


def values(pipeline: Pipeline, topic: str) -> list[bytes | None]:
    """Of all committed records there."""
    config = {"bootstrap.servers": pipeline.topic.bootstrap_servers, "group.id": "t", "enable.partition.eof": True}
    consumer, found = Consumer(config), []
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    return found


@pytest.mark.attack(
    who="who may write into the table of dead letters",
    does="puts a letter there that names a topic which the pipeline does not read, and has it sent",
    gets="nothing: a letter goes to the pipeline's own topics only",
)
def test_a_letter_of_another_topic_is_not_sent(letters: tuple[Pipeline, str]) -> None:
    pipeline, other = letters
    with raises(NotSendable, "letter-of-another-topic") as refused:
        send_again(pipeline, RecordPlace(other, 0, 7))
    assert refused.value.code == "letter-of-another-topic"
    assert values(pipeline, other) == []


@pytest.mark.attack(
    who="a producer",
    does="writes the header that says which letter was sent again, on records of its own, while a letter is in doubt",
    gets="nothing: the letter is sent, and counts as sent only where that very record is there",
)
def test_a_header_alone_does_not_say_that_a_letter_was_sent(
    letters: tuple[Pipeline, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = letters
    topic = pipeline.topic.topics[0]
    place = RecordPlace(topic, 0, 7)

    def crash(*_: object) -> int:
        raise InDoubt("crashed", "as a test wants it")

    with monkeypatch.context() as patch:
        patch.setattr(resend, "_sent", crash)
        with pytest.raises(InDoubt):
            send_again(pipeline, place)
    producer = Producer({"bootstrap.servers": pipeline.topic.bootstrap_servers, "log_level": 0})
    said: tuple[str, str | bytes | None] = (HEADER, str(place).encode())
    for key, value, headers in (
        (b"k", b"forged", [said]),
        (b"k", VALUE, [("more", b"1"), said]),
        (None, VALUE, [said]),
    ):
        producer.produce(topic, value, key, 0, headers=headers)
    assert producer.flush(20) == 0
    mark = send_again(pipeline, place)
    assert (mark.state, mark.sent_offset) == (MarkState.SENT, 3)
    assert values(pipeline, topic) == [b"forged", VALUE, VALUE, VALUE]
