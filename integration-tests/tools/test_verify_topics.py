"""`onefold verify` of topics: exact where a reader sees each row once, and every change by hand is named."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.definitions import named, piped
from harness.kafka.reading import Reader
from harness.kafka.topics import QUIET, in_order, open_transaction
from harness.support import Rig
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError, TaskId
from onefold.sinks import KafkaSink

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("few_tasks")]

PARTITIONS = 3
POSITION = ("kafka_topic", "kafka_partition", "kafka_offset")
MakeTopic = Callable[..., str]


@dataclass(frozen=True)
class Written:
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, message: Message) -> Written:
        value, key = message.value(), message.key()
        return cls(message.partition() or 0, key, value, tuple(message.headers() or ()))  # type: ignore[arg-type]


class Topic:
    """A pipeline's topic, and copies of it that somebody has changed."""

    def __init__(self, rig: Rig, make: MakeTopic, **settings: Any) -> None:
        self.rig, self.make, self.settings = rig, make, settings
        self.name = make(partitions=PARTITIONS)
        self.source = rig.source(columns="position", at_most=100)

    def sink(self, topic: str | None = None) -> KafkaSink:
        """The pipeline's sink, or the same as of a copy of its topic."""
        return KafkaSink(topic or self.name, name=self.name, bootstrap_servers=self.rig.servers, **self.settings)

    def run(self) -> None:
        self.rig.run(self.rig.pipeline(self.sink(), source=self.source, store=self.rig.sqlite))

    def records(self) -> list[Written]:
        reader = Reader(self.rig.servers, self.name, PARTITIONS)
        try:
            return [Written.of(message) for message in reader.read()]
        finally:
            reader.close()

    def copied(self, records: Iterable[Written], **config: str) -> str:
        name = self.make(partitions=PARTITIONS, config=config)
        self.append(name, records)
        return name

    def append(self, name: str, records: Iterable[Written]) -> None:
        producer = in_order(self.rig.servers)
        for one in records:
            producer.produce(name, one.value, one.key, partition=one.partition, headers=list(one.headers))
        assert producer.flush(30) == 0

    def judged(self, exit_code: int, topic: str | None = None, *more: str) -> dict[str, Any]:
        """What `onefold verify` says of the topic, or of a copy; wrong counts that are not 0 are in `wrong`."""
        pipeline = piped("test", source=self.source, sinks=[self.sink(topic)], store=self.rig.sqlite)
        result = CliRunner().invoke(app, ["verify", named(pipeline), "--json", *more])
        if isinstance(result.exception, ConfigError):
            raise result.exception
        assert result.exit_code == exit_code, (result.output, result.stderr, result.exception)
        if not result.stdout and result.exception is not None:
            raise result.exception
        found: dict[str, Any] = json.loads(result.stdout)["sinks"][self.name]
        kinds = ("lost", "duplicated", "changed", "unexpected")
        counts = {kind: found["comparison"][kind] for kind in kinds}
        return found | {"wrong": {kind: count for kind, count in counts.items() if count}}


@pytest.mark.slow
def test_a_transactional_topic_is_exact_and_what_was_lost_doubled_or_changed_is_named(
    rig: Rig, kafka_topic: MakeTopic
) -> None:
    topic = Topic(rig, kafka_topic, key="id", headers="n")
    rig.put(300)
    topic.run()
    found = topic.judged(0)
    assert (found["comparison"]["expected"], found["comparison"]["actual"], found["epochs"]) == (300, 300, 3)

    records = topic.records()
    lost, doubled, changed, *others = records
    stranger = replace(lost, key=b"9999", value=b'{"id":9999}')
    copy = topic.copied([doubled, doubled, replace(changed, headers=(("n", b"x"),)), *others, stranger])
    found = topic.judged(1, copy)
    assert found["wrong"] == {"lost": 1, "duplicated": 1, "changed": 1, "unexpected": 1}
    assert found["comparison"]["samples"]["lost"] == [
        f"id={lost.key!s} (expected 1, found 0)".replace("b'", "").replace("'", "")
    ]
    places = {kind: place for place, counts in found["comparison"]["partitions"].items() for kind in counts}
    wanted = {"lost": lost, "duplicated": doubled, "changed": changed, "unexpected": stranger}
    assert places == {kind: str(one.partition) for kind, one in wanted.items()}, "a lost one by its key"
    assert found["invariants"]["no-loss"] and found["invariants"]["no-duplicate"]
    assert topic.judged(1, copy, "--key=id")["wrong"] == found["wrong"], "the value's own column says the same"


@pytest.mark.slow
def test_an_open_transaction_of_the_sink_is_in_doubt_and_somebody_elses_is_refused(
    rig: Rig, kafka_topic: MakeTopic
) -> None:
    topic = Topic(rig, kafka_topic, key="id")
    rig.put(40)
    topic.run()
    copy = topic.copied(topic.records())
    stranger = open_transaction(rig.servers, copy, 1)
    with pytest.raises(ConfigError, match="not this sink's: nobody sees what is behind it"):
        topic.judged(1, copy)
    stranger.abort_transaction(10)
    assert topic.judged(0, copy)["wrong"] == {}

    late = topic.sink()
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    committer = late.open("test", schema)
    writer = late.writer(TaskId("test", 1, 1, 1000, uuid.uuid4()))
    writer.write(pa.record_batch([[1], [1]], schema=schema))
    left = writer.prepare()
    assert left is not None
    found = topic.judged(1)
    assert found["wrong"] == {}
    assert [left.handle in text for text in found["invariants"]["nothing-in-doubt"]] == [True]
    committer.abort([left])
    committer.close()
    assert topic.judged(0)["wrong"] == {}


@pytest.mark.slow
def test_a_keyed_topic_with_repeats_is_exact_by_its_ids_and_what_readers_pass_over_is_lost(
    rig: Rig, kafka_topic: MakeTopic
) -> None:
    topic = Topic(rig, kafka_topic, delivery="keyed", id=POSITION)
    rig.put(120)
    topic.run()
    records = topic.records()
    topic.append(topic.name, records[:50])
    found = topic.judged(0)
    assert found["comparison"]["actual"] == 120
    assert "50 repeated records" in found["comparison"]["notes"][0]

    other = replace(records[0], value=b'{"id":1}')
    assert topic.judged(1, topic.copied([*records, other]))["wrong"] == {"duplicated": 1}
    oldest = next(one for one in records if (one.key or b"").endswith(b":0"))
    elsewhere = replace(oldest, partition=(oldest.partition + 1) % PARTITIONS)
    assert topic.judged(1, topic.copied([elsewhere, *records]))["wrong"] == {"duplicated": 1}
    assert topic.judged(1, topic.copied(records[1:]))["wrong"] == {"lost": 1}

    def source_of(record: Written) -> bytes:
        assert record.key is not None
        return record.key.rpartition(b":")[0]

    first = records[0]
    second = next(r for r in records[1:] if (r.partition, source_of(r)) == (first.partition, source_of(first)))
    rest = [record for record in records if record not in (first, second)]
    found = topic.judged(1, topic.copied([second, first, *rest]))
    assert found["wrong"] == {"lost": 1}
    assert "1 records in" in found["comparison"]["notes"][0] and "behind higher ids" in found["comparison"]["notes"][0]


@pytest.mark.slow
def test_what_a_topic_has_expired_is_said_and_not_called_lost_and_what_it_lost_since_is(
    rig: Rig, kafka_topic: MakeTopic
) -> None:
    topic = Topic(rig, kafka_topic, key="id")
    rig.put(300)
    topic.run()
    records = topic.records()
    last = next(one for one in reversed(records) if int(one.key or 0) >= 200)  # the third epoch's
    copies = [topic.copied(records), topic.copied([one for one in records if one != last])]
    for copy in copies:
        admin = AdminClient({"bootstrap.servers": rig.servers, **QUIET})
        for future in admin.delete_records([TopicPartition(copy, 0, 10)]).values():
            future.result(20)
    found = topic.judged(2, copies[0])
    assert (found["wrong"], found["comparison"]["untold"]) == ({}, 10)
    assert "has dropped its first offsets (10 of partition 0). 10 records" in found["comparison"]["notes"][0]
    found = topic.judged(1, copies[1])
    assert (found["wrong"], found["comparison"]["untold"]) == ({"lost": 1}, 10)
    assert str(last.key) in f"b'{found['comparison']['samples']['lost'][0].split()[0].removeprefix('id=')}'"


@pytest.mark.slow
def test_of_a_compacted_topic_the_last_record_of_each_key_has_to_be_there(rig: Rig, kafka_topic: MakeTopic) -> None:
    topic = Topic(rig, kafka_topic, key="n")
    for number in range(2):
        values = [b'{"id":%d,"n":%d}' % (10 * number + n, n) for n in range(10)]
        rig.put_values(values, 1)
        topic.run()
    newest = {one.key: one for one in topic.records()}
    compacted = topic.copied(newest.values(), **{"cleanup.policy": "compact"})
    found = topic.judged(2, compacted, "--key=id")
    assert (found["wrong"], found["comparison"]["untold"]) == ({}, 10)
    lacking = topic.copied(list(newest.values())[1:], **{"cleanup.policy": "compact"})
    assert topic.judged(1, lacking, "--key=id")["wrong"] == {"lost": 1}
    assert topic.judged(1, topic.copied(newest.values()), "--key=id")["wrong"] == {"lost": 10}
