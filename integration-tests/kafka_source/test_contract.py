"""`KafkaSource` as the contract's `Source`, on a real broker, and its columns as Spark has them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.kafka.topics import QUIET, in_order, produce
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onefold.core.positions import Positions, Range
from onefold.core.source import Bounded, Source, own_positions
from onefold.core.testing import check_source
from onefold.core.values.ddl import schema_of
from onefold.sources import KafkaSource
from onefold.sources.kafka import close_consumers, record_ddl

pytestmark = pytest.mark.servers
Topic = Callable[..., str]

WRITTEN = [
    "id long, at timestamp, day date, local timestamp_ntz, ok boolean, b byte, s short, i int, f float, d double",
    "id BIGINT NOT NULL COMMENT 'a key', `a b` DECIMAL(12, 2), tags array<string>, t string",
    "who: struct<name: string, `first``s`: array<struct<n: int NOT NULL>>>, n numeric, m dec(7)",
    "struct<id: long, by: map<string, array<decimal(38,18)>>>",
    "void int, struct string, array short, map real, comment string, a timestamp_ltz",
]


@pytest.fixture
def servers(kafka_server: Any) -> Iterator[str]:
    yield str(kafka_server.bootstrap_servers)
    close_consumers()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("ddl", WRITTEN)
def test_columns_are_what_spark_reads_in_the_same_text(ddl: str) -> None:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    assert schema_of(ddl) == to_arrow_schema(found, timezone="UTC")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"format": "string", "columns": ["key", "headers", "timestamp", "position", "topic_id"]},
        {"format": "csv", "schema": WRITTEN[0], "columns": ["position"]},
        {"format": "json", "schema": "id long NOT NULL, x array<struct<a: decimal(3,1)>>", "columns": "headers"},
        {"format": "avro", "avro_schema": '{"type": "map", "values": "int"}'},
    ],
    ids=lambda settings: settings.get("format", "raw"),
)
def test_every_format_has_the_columns_that_spark_gives_it(settings: dict[str, Any]) -> None:
    if settings.get("format") == "avro":
        fields = '[{"name": "id", "type": "long"}, {"name": "m", "type": {"type": "map", "values": "int"}}]'
        settings = {**settings, "avro_schema": f'{{"type": "record", "name": "r", "fields": {fields}}}'}
    source = KafkaSource("orders", bootstrap_servers="localhost:1", **settings)
    struct = StructType.fromDDL(record_ddl(source))
    assert isinstance(struct, StructType)
    assert source.arrow_schema() == to_arrow_schema(struct, timezone="UTC")


def values(source: Source, span: Range) -> list[bytes]:
    splits = source.planner().splits(span)
    source, splits = pickle.loads(pickle.dumps((source, splits)))
    return [value for split in splits for part in source.read(split) for value in part.rows["value"].to_pylist()]


def test_a_source_is_planned_within_its_limits_and_read_again_the_same(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=2)
    produce(servers, topic, 30, 0)
    produce(servers, topic, 10, 1)
    source = KafkaSource(topic, bootstrap_servers=servers, max_offsets_per_trigger=20)
    planner = source.planner()
    start = planner.initial()
    assert start == planner.initial() == Positions.of({f"{topic}/0": 0, f"{topic}/1": 0})
    assert planner.latest(start) == Positions.of({f"{topic}/0": 30, f"{topic}/1": 10})
    first = Range(start, planner.end(start))
    second = Range(first.end, planner.end(first.end))
    assert second.end == planner.latest(start) == planner.end(second.end)
    read = values(source, first) + values(source, second)
    assert len(read) == 40
    assert read == values(source, first) + values(source, second)
    assert sum(split.size for split in planner.splits(first)) == 20
    assert not planner.is_done(second.end)
    planner.close()


def test_a_bounded_source_ends_where_it_ended_when_it_was_resolved_first(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 5)
    kept: dict[str, str] = {}

    def keep(name: str, find: Callable[[], str]) -> str:
        return kept.setdefault(name, kept.get(name) or find())

    source = KafkaSource(topic, bootstrap_servers=servers)
    assert isinstance(source, Bounded)
    bounded = source.bounded().resolved(keep)
    produce(servers, topic, 5)
    for again in (bounded, source.bounded().resolved(keep)):
        planner = again.planner()
        assert planner.end(planner.initial()) == Positions.of({f"{topic}/0": 5})
        assert not planner.is_done(planner.initial())
        assert planner.is_done(planner.end(planner.initial()))


def test_positions_of_several_sources_are_told_apart(servers: str, kafka_topic: Topic) -> None:
    one, other = (KafkaSource(kafka_topic(partitions=1), bootstrap_servers=servers) for _ in range(2))
    ends = [source.planner().initial() for source in (one, other)]
    both = Positions.of(
        {name: at for each in ends for name, at in each.items},
        {name: mark for each in ends for name, mark in each.marks},
    )
    assert own_positions(one, both) == ends[0]
    assert own_positions(one, both).topic_ids() == ends[0].topic_ids()


def test_it_keeps_every_promise_of_a_source(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=2)
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    producer = in_order(servers)

    def send(values: Iterable[bytes]) -> None:
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        assert producer.flush(20) == 0

    def lose() -> None:
        for done in admin.delete_records([TopicPartition(topic, number, OFFSET_END) for number in (0, 1)]).values():
            done.result()

    def make(on_error: Any, bad_records_max: int) -> KafkaSource:
        more = {"format": "json", "schema": "id long", "max_offsets_per_trigger": 7}
        at = {"on_error": on_error, "bad_records_max": bad_records_max, "bootstrap_servers": servers}
        return KafkaSource(topic, **more, **at)

    check_source(
        make, lambda ids: send(b'{"id":%d}' % number for number in ids), spoil=lambda: send([b"no"]), lose=lose
    )
