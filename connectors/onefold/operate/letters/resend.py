"""Sends a dead letter's record to its topic again, once, whatever crashes.

The producer has a transactional id of the pipeline's. Its start ends what an earlier one had open, and fences it: from
there on a record of an earlier attempt is in the topic or never will be. So where a mark says that a letter may have
been sent, the topic is read from where it ended then, and that very record is looked for: key, value and all headers,
of which the last one names its place. (A header alone can be anybody's who may write there.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from onefold.clients.kafka.client_roles import CONSUMER, PRODUCER
from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.sessions import Connection
from onefold.core import InDoubt, Retriable
from onefold.core.values.plain import plain
from onefold.operate.letters.browse import headers_of
from onefold.operate.letters.letter import CUT, Mark, MarkState, NotSendable, RecordPlace
from onefold.operate.letters.resend_marks import begin, finish
from onefold.pipeline import Pipeline
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.sources import KafkaSource
from onefold.sources.kafka.fetching.fetched_records import headers_of as headers_in

HEADER = "onefold.sent-again"
_WITHIN_S = 20.0
_AT_ONCE_MAX = 32  # messages: each may have a hundred thousand headers


def send_again(pipeline: Pipeline, place: RecordPlace) -> Mark:
    """Send the record of that letter to its own topic and partition, with its key, value and headers, and now as its
    time. Raises NotSendable, or InDoubt where no answer came: then ask again, and it is found out first."""
    source = next((each for each in pipeline.topics if each.subscription.covers(place.topic)), None)
    if source is None:
        raise NotSendable(
            "letter-of-another-topic",
            f"pipeline {pipeline.name!r} does not read topic {place.topic!r}, so the record at {place} is not sent"
            " there with its rights. If it was read before, and the letter is the pipeline's own, send it by hand",
        )
    sink = pipeline.graph.letters_of(source.name)
    if not isinstance(sink, PostgresSink):
        raise NotSendable(
            "letters-elsewhere",
            f"pipeline {pipeline.name!r} has no dead letters in a Postgres table, and only from there are they sent"
            " again",
        )
    settings, name, at = sink.settings, pipeline.name, (place.topic, place.partition, place.offset)
    with pool.borrow(settings.conninfo("dead letters"), f"sending {place} again") as connection:
        record = _record(connection, settings, name, place)
        producer = _started(source, name, place)
        end = _end(source, place)
        mark, is_new = begin(connection, settings, name, at, end)
        if mark.state is MarkState.SENT:
            raise NotSendable("letter-sent", f"the record at {place} was sent again already, at {mark.at:%F %T} UTC")
        sent = None if is_new else _looked_for(source, place, record, mark.from_offset, end)
        if sent is None:
            sent = _sent(producer, place, record)
        return finish(connection, settings, name, at, sent)


def _record(connection: Connection, settings: PostgresSinkConfig, pipeline: str, place: RecordPlace) -> dict[str, Any]:
    query = (
        f"SELECT key, value, headers, reason FROM {settings.target.sql} WHERE pipeline = %s AND source_topic = %s"
        " AND source_partition = %s AND source_offset = %s"
    )
    row = connection.execute(query.encode(), (pipeline, place.topic, place.partition, place.offset)).fetchone()
    if row is None:
        raise NotSendable("letter-unknown", f"there is no dead letter of {place} in {settings.target}")
    key, value, headers, reason = row
    if reason.startswith(CUT):
        raise NotSendable(
            "letter-cut", f"the dead letter has not the whole record: {reason}. Read it at {place}, and send it by hand"
        )
    try:
        own = headers_of(headers)
    except ValueError as error:
        raise NotSendable(
            "letter-unreadable",
            f"the headers in the dead letter of {place} are not as onefold writes them ({plain(str(error))}): somebody"
            " else has written that row. Read the record at its place, and send it by hand",
        ) from error
    return {"key": key, "value": value, "headers": [*own, (HEADER, str(place).encode())]}


def _started(source: KafkaSource, pipeline: str, place: RecordPlace) -> Producer:
    """A producer that has ended what an earlier one had open. From here on that one can do nothing more."""
    config = CONSUMER.admin_config(source.bootstrap_servers, source.client_config)
    own = {"transactional.id": f"onefold-sent-again-{pipeline}", "transaction.timeout.ms": 60_000}
    producer = PRODUCER.open(Producer, {**config, **own})
    _asked(lambda: producer.init_transactions(_WITHIN_S), place)
    producer.begin_transaction()
    return producer


def _sent(producer: Producer, place: RecordPlace, record: dict[str, Any]) -> int:
    """The record's new offset."""
    told: list[tuple[KafkaError | None, Message]] = []
    _asked(
        lambda: producer.produce(
            place.topic,
            partition=place.partition,
            on_delivery=lambda error, message: told.append((error, message)),
            **record,
        ),
        place,
    )
    _asked(lambda: producer.commit_transaction(_WITHIN_S), place)
    ((_, message),) = told
    return int(message.offset() or 0)


def _end(source: KafkaSource, place: RecordPlace) -> int:
    """Where the partition ends, open transactions included."""
    partition = (place.topic, place.partition)
    return source.broker().log_end([partition])[partition]


def _looked_for(source: KafkaSource, place: RecordPlace, record: dict[str, Any], start: int, end: int) -> int | None:
    """The offset of the record that was sent again, if it is between these. Raises Retriable where that can't be read
    to its end."""
    config = CONSUMER.config(source.bootstrap_servers, source.client_config, {"isolation.level": "read_committed"})
    consumer = CONSUMER.open(Consumer, config)
    deadline_s = time.monotonic() + _WITHIN_S
    try:
        consumer.assign([TopicPartition(place.topic, place.partition, start)])
        at = start
        while at < end and time.monotonic() < deadline_s:
            for message in consumer.consume(_AT_ONCE_MAX, 0.5):
                error = message.error()
                if error is None and _content(message) == record:
                    return message.offset()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise _unanswered(place, error)
                at = (message.offset() or 0) + (error is None)
    finally:
        consumer.close()
    if at < end:
        raise Retriable(
            "letter-doubt-unresolved",
            f"whether the record at {place} was sent again is not known yet: {place.topic}/{place.partition} could not"
            f" be read from {start} to {end} within {_WITHIN_S:.0f} s. Another producer's open transaction may be in"
            " the way: ask again later",
        )
    return None


def _content(message: Message) -> dict[str, Any]:
    return {"key": message.key(), "value": message.value(), "headers": headers_in(message)}


def _asked(call: Callable[[], Any], place: RecordPlace) -> None:
    try:
        call()
    except KafkaException as error:
        raise _unanswered(place, error.args[0]) from error


def _unanswered(place: RecordPlace, error: KafkaError) -> InDoubt:
    return InDoubt(
        "letter-unanswered",
        f"whether the record at {place} was sent again is not known: {error.str()}. Send it again: that finds out"
        " first, so it is sent once. It needs WRITE on the topic and on the transactional id",
    )
