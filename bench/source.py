"""A topic into columns: the source by both paths, Spark's connector, and a bare consume loop. `python -m bench.source`

Nothing is written anywhere: rows per second, over all partitions, on two cores. Each contestant runs twice, and the
better run counts.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import fastavro
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json

from bench.orders import AVRO
from bench.orders import SCHEMA as COLUMNS
from bench.world import PARTITIONS, SCHEMA, World, open_world
from onefold.connectors.workload.orders import orders
from onefold.sources import KafkaSource
from onefold.sources.kafka import RAW_COLUMNS, OffsetRange, read
from onefold.sources.kafka.avro_types import AvroSchema
from onefold.spark import register

AVRO_TEXT = json.dumps(AVRO)
FORMATS = {
    "raw": ({"format": "raw"}, RAW_COLUMNS),
    "JSON": ({"format": "json", "schema": SCHEMA}, COLUMNS),
    "Avro": ({"format": "avro", "avro_schema": AVRO_TEXT}, AvroSchema(AVRO_TEXT).arrow),
}
Sharing = tuple[str, str, str, list[int], int]


def consume_loop(share: Sharing) -> int:
    """What a program without onefold would do, before it looks into any record."""
    servers, topic, _, partitions, each = share
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "loop", "enable.auto.commit": "false"})
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    taken = 0
    while taken < each * len(partitions):
        taken += sum(len(m.value()) > 0 for m in consumer.consume(10_000, 1))
    consumer.close()
    return taken


def source_loop(share: Sharing) -> int:
    """The source alone, as the direct path's tasks use it."""
    servers, topic, name, partitions, each = share
    settings, schema = FORMATS[name]
    source = KafkaSource(topic, bootstrap_servers=servers, **settings)
    ranges = [OffsetRange(topic, number, 0, each) for number in partitions]
    return sum(batch.num_rows for wanted in ranges for batch in read(source, schema, wanted))


def in_two_processes(run: Callable[[Sharing], int], servers: str, topic: str, name: str, rows: int) -> None:
    each = rows // PARTITIONS
    shares = [(servers, topic, name, list(range(start, PARTITIONS, 2)), each) for start in (0, 1)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(_warm, [0, 1], 1)
        began_s = time.monotonic()
        taken = sum(pool.map(run, shares, 1))
        _say(name, run.__name__, rows, time.monotonic() - began_s)
    assert taken == rows, (taken, rows)


def _warm(_: int) -> None:
    time.sleep(1.0)  # both processes have imported all by then


def through_spark(what: str, df: DataFrame, name: str, rows: int) -> None:
    began_s = time.monotonic()
    df.write.format("noop").mode("overwrite").save()
    _say(name, what, rows, time.monotonic() - began_s)


def _say(name: str, what: str, rows: int, seconds: float) -> None:
    print(f"| {name} | {what} | {rows / seconds / 1e6:.2f} |", flush=True)


def spark_connector(world: World, topic: str, name: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": world.kafka.bootstrap_servers, "subscribe": topic}
    df = world.spark.read.format("kafka").options(**options, startingOffsets="earliest").load()
    if name == "raw":
        return df
    if name == "JSON":
        return df.select(from_json(col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
    from pyspark.sql.avro.functions import from_avro

    return df.select(from_avro("value", AVRO_TEXT).alias("r")).select("r.*")


def avro_topic(world: World, rows: int) -> str:
    name = f"avro-{rows}-{PARTITIONS}"
    admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap_servers})
    if name in admin.list_topics(timeout=30).topics:
        return name
    world.say(f"producing {rows:,} records into {name}")
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap_servers, "linger.ms": 50})
    schema = fastavro.parse_schema(AVRO)
    for number, value in enumerate(orders(rows, 1)):
        row, data = json.loads(value), io.BytesIO()
        row["at"] = pa.scalar(row["at"]).cast(pa.timestamp("us", "UTC")).value
        fastavro.schemaless_writer(data, schema, row)
        producer.produce(name, data.getvalue(), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)
    return name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--directory", type=Path, default=Path(".onefold/bench"))
    arguments = parser.parse_args()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    rows = arguments.rows - arguments.rows % PARTITIONS
    with open_world(arguments.directory, lambda text: print(text, flush=True)) as world:
        register(world.spark)
        servers = world.kafka.bootstrap_servers
        topics = {"raw": world.topic(rows), "JSON": world.topic(rows), "Avro": avro_topic(world, rows)}
        print("| format | | M rows/s |\n| --- | --- | --- |")
        for name, topic in topics.items():
            for _ in range(2):
                if name == "raw":
                    in_two_processes(consume_loop, servers, topic, name, rows)
                in_two_processes(source_loop, servers, topic, name, rows)
                settings, _ = FORMATS[name]
                options = KafkaSource(topic, bootstrap_servers=servers, **settings).options()
                df = world.spark.read.format("onefold_kafka").options(**options).load()
                through_spark("onefold_kafka", df, name, rows)
                if world.unavailable is None:
                    through_spark("Spark's connector", spark_connector(world, topic, name), name, rows)


if __name__ == "__main__":
    main()
