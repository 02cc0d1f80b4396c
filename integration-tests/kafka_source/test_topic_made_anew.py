"""A source topic that is deleted and made anew counts from 0 again, in destinations that know rows by their offsets."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from harness.errors import raises
from harness.kafka.topics import make_anew
from harness.support import Rig, through_spark

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import ConfigError, DataLoss, Sink
from onefold.sinks import HBaseSink, KafkaSink, SqlSink
from onefold.sources import KafkaSource, OrderedIds
from onefold.spark.formats.registration import register

pytestmark = pytest.mark.servers

Change = Callable[[Any], Any]
BEFORE, AFTER = 400, 200
REFUSED = rf"wrote there up to offset {BEFORE // 4} of a topic .* that was another one"


class Anew:
    """A pipeline before the topic is made anew, and others after it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def run(self, sink: Sink, name: str, change: Change = lambda rows: rows, **reading: object) -> None:
        source = self.rig.source(at_most=None, **{"columns": ["position"], **reading})
        store = sink.store_url() or self.rig.sqlite
        self.rig.run(self.rig.pipeline(sink, name=name, source=source, change=change, store=store), name)

    def make(self, sink: Sink, put: Callable[[], None], change: Change = lambda rows: rows) -> None:
        """Written, made anew, and refused: by the source under the old name, by the sink under a new one."""
        self.rig.put(BEFORE)
        self.run(sink, "before", change)
        make_anew(self.rig.servers, self.rig.topic, 4)
        put()
        with raises(DataLoss, "topic-recreated", "the topic was deleted and made anew", "under another name"):
            self.run(sink, "before", change)
        with pytest.raises(ConfigError, match=REFUSED):
            self.run(sink, "refused", change)


@pytest.fixture
def anew(rig: Rig) -> Anew:
    return Anew(rig)


@pytest.mark.slow
def test_a_keyed_topic_refuses_ids_that_were_there_and_takes_those_with_the_topic_s_id(
    anew: Anew, kafka_topic: Callable[..., str]
) -> None:
    rig, into = anew.rig, kafka_topic(partitions=1)

    def keyed(topic: str) -> KafkaSink:
        ids = (topic, "kafka_partition", "kafka_offset")
        return KafkaSink(into, bootstrap_servers=rig.servers, delivery="keyed", id=ids)

    def assert_seen() -> None:
        columns, schema = ["position", "key"], "id long, n long"
        reader = rig.pipeline(
            rig.sink("staged", "seen"),
            name="reader",
            source=KafkaSource(into, bootstrap_servers=rig.servers, format="json", schema=schema, columns=columns),
            change=lambda rows: rows.deduplicate(OrderedIds(), uid="once").select("id", "n"),
        )
        rig.run(reader, "reader")
        assert rig.rows("seen") == rig.sent

    anew.make(keyed("kafka_topic"), lambda: rig.put(AFTER))
    anew.run(keyed("kafka_topic_id"), "after", columns=["position", "topic_id"])
    assert_seen()
    make_anew(rig.servers, rig.topic, 4)
    rig.put(AFTER)
    anew.run(keyed("kafka_topic_id"), "later", columns=["position", "topic_id"])
    assert_seen()


def put_versions(rig: Rig, n: int) -> None:
    rig.put_values([b'{"id":%d,"n":%d}' % (i, n) for i in range(AFTER)])


def newest(rig: Rig, delivery: str, order: str) -> Sink:
    settings: dict[str, Any] = {"mode": "upsert", "key": "id", "order": order}
    if delivery == "sql":
        return SqlSink(rig.url.replace("postgresql:", "postgresql+psycopg:"), "rows", **settings)
    return rig.sink(delivery, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["two_phase", "staged", "sql"])
def test_versions_that_are_offsets_are_refused_and_numbers_that_go_on_are_taken(anew: Anew, delivery: str) -> None:
    rig = anew.rig
    anew.make(newest(rig, delivery, "kafka_offset"), lambda: put_versions(rig, -1))
    rig.sql("ALTER TABLE rows RENAME kafka_offset TO version")

    def going_on(rows: Any) -> Any:
        return rows.select("id", "n", "kafka_topic", "kafka_partition", version=f"kafka_offset + {BEFORE // 4}")

    anew.run(newest(rig, delivery, "version"), "after", going_on)
    assert rig.rows() == [(i, -1 if i < AFTER else n) for i, n in rig.sent]


@pytest.mark.slow
def test_messages_that_are_counted_by_offsets_are_refused_and_numbers_that_go_on_are_taken(
    anew: Anew, hbase_server: Any
) -> None:
    rig, table = anew.rig, f"test_{uuid.uuid4().hex[:12]}"

    def sums(id: str) -> HBaseSink:
        merge = {"n": "sum"}
        return HBaseSink(
            hbase_server.servers, table, row_key="id", family="f", mode="incremental", sequence=id, merge=merge
        )

    anew.make(sums("kafka_offset"), lambda: put_versions(rig, 1000), lambda s: s.select("id", "n", "kafka_offset"))
    anew.run(sums("at"), "after", lambda s: s.select("id", "n", at=f"kafka_offset + {BEFORE // 4}"))
    mapping = TableMapping.of(table, "id", None, "f")
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    found = rows_of(HBaseSettings(hbase_server.servers), mapping.bound(schema))
    assert sorted(found) == [(i, n + 1000 if i < AFTER else n) for i, n in rig.sent]


def rows_of(settings: HBaseSettings, mapping: TableMapping) -> list[tuple[int, int]]:
    batches = [
        mapping.decode(part.keys, part.values[: len(mapping.columns)])
        for part in HBaseTable(settings, mapping.table).scan(b"", b"", mapping.cell_columns)
    ]
    return [(row["id"], row["n"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["flow", "flow through Spark", "batch"])
def test_rows_bring_the_id_of_their_topic_beside_bad_records(rig: Rig, way: str) -> None:
    rig.put(40)
    rig.put_values([b"bad"])
    admin = AdminClient({"bootstrap.servers": rig.servers})
    described = admin.describe_topics(TopicCollection([rig.topic]))[rig.topic].result(20)
    shown = str(described.topic_id).replace("+", "-").replace("/", "_")  # as kafka-topics.sh shows it
    source = rig.source(at_most=None, columns=["topic_id", "position"], on_error="dead_letter")
    if way == "batch":
        register(rig.spark)
        options = rig.source(at_most=None, columns=["topic_id"], on_error="skip").options()
        found = rig.spark.read.format("onefold_kafka").options(**options).load()
        assert [tuple(row) for row in found.groupBy("kafka_topic_id").count().collect()] == [(shown, 40)]
        return
    change: Change = (lambda rows: rows) if way == "flow" else through_spark
    rig.run(rig.pipeline(source=source, change=change, dead_letters=rig.sink("two_phase", "dead")))
    assert rig.sql("SELECT kafka_topic_id, count(*) FROM rows GROUP BY 1") == [(shown, 40)]
    assert rig.sql("SELECT count(*) FROM dead") == [(1,)]
