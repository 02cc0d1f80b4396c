"""`python -m bench.deduplication`: what dropping seen records costs a reader, beside reading alone. One run."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from bench.arguments import parser_of
from bench.cpu import cpu_s
from bench.engine_parts import DroppingSink
from onefold.flow import Flow, IdsWithin, OrderedIds, Stream
from onefold.local import KafkaServer
from onefold.sources import KafkaSource
from onefold.spark import register
from onefold.spark.session import spark_session

PARTITIONS = 4
REPEATED = 20  # of so many records, the last is one from before


def main() -> None:
    parser = parser_of("bench.deduplication", __doc__, rows=2_000_000, of="records")
    parser.add_argument("--rows-per-batch", type=int, default=500_000)
    parser.add_argument("--sources", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=[*CONTESTANTS], default=[*CONTESTANTS], metavar="NAME")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(
        f"{arguments.rows:,} records of {arguments.sources:,} sources, 1 in {REPEATED} repeated, batches of"
        f" {arguments.rows_per_batch:,}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}"
    )
    with KafkaServer(arguments.directory) as server:
        topic = _fill(server.bootstrap_servers, arguments.rows, arguments.sources)
        spark = spark_session("onefold bench", arguments.directory / "spark", master="local[2]")
        register(spark)
        source = KafkaSource(
            topic, bootstrap_servers=server.bootstrap_servers, max_offsets_per_trigger=arguments.rows_per_batch
        )
        try:
            _run(spark, source, arguments)
        finally:
            spark.stop()
    print(f"load after {os.getloadavg()[0]:.1f}")


def _run(spark: SparkSession, source: KafkaSource, arguments: argparse.Namespace) -> None:
    used: dict[str, list[tuple[float, float]]] = {name: [] for name in arguments.only}
    for turn in range(arguments.repeat + 1):  # the first does not count
        for name in arguments.only:
            before_s, started_s = cpu_s(os.getpid()), time.monotonic()
            checkpoint = arguments.directory / "checkpoints" / uuid.uuid4().hex
            CONTESTANTS[name](spark, source, checkpoint)
            shutil.rmtree(checkpoint)
            took_s, cpu = time.monotonic() - started_s, cpu_s(os.getpid()) - before_s
            if turn:
                used[name].append((took_s / arguments.rows * 1e6, cpu / arguments.rows * 1e6))
    reading = statistics.median(cpu for _, cpu in used[arguments.only[0]])
    for name, found in used.items():
        took, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        print(
            f"{name:12} {1 / took:5.2f} M records/s ({1 / max(found)[0]:.2f} to {1 / min(found)[0]:.2f}),"
            f" CPU {cpu:.2f} us a record, {cpu - reading:+.2f}"
        )


def _flow(change: Callable[[Stream], Stream]) -> Callable[[SparkSession, KafkaSource, Path], None]:
    def run(spark: SparkSession, source: KafkaSource, checkpoint: Path) -> None:
        flow = Flow("deduplication")
        change(flow.source(source, uid="records")).sink(DroppingSink())
        store, now = f"sqlite:///{checkpoint}.db", {"availableNow": True}
        with closing(flow.start(spark, checkpoint=str(checkpoint), store=store, trigger=now)) as running:
            running.await_termination()
        Path(f"{checkpoint}.db").unlink()

    return run


def _fill(servers: str, records: int, sources: int) -> str:
    """A topic with ids SOURCE:NUMBER in the keys, each source's in order in one partition, and values of 100 bytes."""
    topic = f"ids-{records}-{sources}"
    admin = AdminClient({"bootstrap.servers": servers})
    if topic in admin.list_topics(timeout=30).topics:
        return topic
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    value = b"x" * 100
    for i in range(records):
        source = i % sources
        number = i // sources
        if i // sources % REPEATED == REPEATED - 1:
            number -= 1
        producer.produce(topic, value, f"orders/{source}:{number}", source % PARTITIONS)
        if i % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    return topic


def _by_hand(spark: SparkSession, source: KafkaSource, checkpoint: Path) -> None:
    df = _kept_by_hand(spark.readStream.format("onefold_kafka").options(**source.options()).load())
    writer = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def _kept_by_hand(df: DataFrame) -> DataFrame:
    """As one would write it: a group for each source, rows in pandas (which has no type for headers)."""

    def keep(_key: object, frames: object, state: object) -> object:
        rows = pd.concat(frames)
        highest = state.get[0] if state.exists else -1
        rows = rows.sort_values("offset", kind="stable")
        before = rows["number"].cummax().shift(fill_value=-1).clip(lower=highest)
        rows, top = rows[rows["number"] > before], max(highest, int(rows["number"].max()))
        state.update((top,))
        yield rows.drop(columns=["source", "number"])

    columns = ["topic", "partition", "offset", "timestamp", "key", "value"]
    parts = [
        "split_part(cast(key as string), ':', 1) source",
        "cast(split_part(cast(key as string), ':', 2) as long) number",
    ]
    named = df.selectExpr(*columns, *parts)
    grouped = named.groupBy("partition", "source")
    return grouped.applyInPandasWithState(keep, df.select(columns).schema, "highest long", "append", "NoTimeout")


CONTESTANTS: dict[str, Callable[[SparkSession, KafkaSource, Path], None]] = {
    "reading": _flow(lambda stream: stream),
    "OrderedIds": _flow(lambda stream: stream.deduplicate(OrderedIds(), uid="once")),
    "IdsWithin": _flow(lambda stream: stream.deduplicate(IdsWithin("1 day"), uid="once")),
    "by hand": _by_hand,
}

if __name__ == "__main__":
    main()
