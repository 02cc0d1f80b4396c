"""The deduplicating reader on a real broker and a real Spark: repeats, restarts, replays, and bad ids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from support import AVAILABLE_NOW, Rig

from onefold.sources import IdsWithin, OrderedIds
from onefold.spark import deduplicate, register

pytestmark = pytest.mark.servers


def put(rig: Rig, ids: Iterable[str | None], partition: int = 0, in_header: bool = False) -> None:
    """Records whose value is their id."""
    producer = Producer({"bootstrap.servers": rig.servers, "log_level": 0})
    for id in ids:
        headers: list[Any] = [("other", b"x"), ("id", id)] if in_header and id is not None else []
        producer.produce(rig.topic, (id or "-").encode(), None if in_header else id, partition, headers=headers)
    assert producer.flush(20) == 0


def stream(rig: Rig, ids: Any, **options: str) -> DataFrame:
    register(rig.spark)
    reader = rig.spark.readStream.format("onefold_kafka").option("subscribe", rig.topic)
    return deduplicate(reader.option("kafka.bootstrap.servers", rig.servers).options(**options).load(), ids)


def run(rig: Rig, df: DataFrame, fail_at: int | None = None) -> list[list[tuple[int, str]]]:
    """Run until what is there now is read: partition and value of each batch's records, in the order they came."""
    batches: list[list[tuple[int, str]]] = []

    def take(batch: DataFrame, number: int) -> None:
        found = batch.selectExpr("partition", "cast(value as string)").collect()
        batches.append([(row[0], row[1]) for row in found])
        if number == fail_at:
            raise RuntimeError("crashed on purpose")

    writer = df.writeStream.foreachBatch(take).option("checkpointLocation", rig.checkpoint())
    query = writer.trigger(**AVAILABLE_NOW).start()
    query.awaitTermination(120)
    return batches


def values(batches: list[list[tuple[int, str]]]) -> list[str]:
    return [value for batch in batches for _, value in batch]


def test_repeats_are_dropped_across_batches_restarts_and_replayed_batches(rig: Rig) -> None:
    put(rig, [f"a:{i}" for i in range(40)])
    put(rig, [*(f"a:{i}" for i in range(30, 50)), *(f"b:{i}" for i in range(20))], partition=1)
    first = run(rig, stream(rig, OrderedIds(), maxOffsetsPerTrigger="40"))
    assert len(first) == 2
    wanted = [(0, f"a:{i}") for i in range(40)], [(1, f"a:{i}") for i in range(30, 50)]
    assert sorted(chain(*first)) == sorted([*wanted[0], *wanted[1], *((1, f"b:{i}") for i in range(20))])

    put(rig, ["a:38", "a:39", "a:40", "a:5", "a:41", "a:40"])
    put(rig, ["b:19", "b:20", "a:49"], partition=1)
    with pytest.raises(StreamingQueryException, match="crashed on purpose"):
        run(rig, stream(rig, OrderedIds()), fail_at=2)
    put(rig, ["a:41", "a:42"])
    again, rest = run(rig, stream(rig, OrderedIds()))
    assert again == [(0, "a:40"), (0, "a:41"), (1, "b:20")]
    assert rest == [(0, "a:42")]


def test_ids_in_a_header_and_ids_within_a_span_survive_a_restart(rig: Rig) -> None:
    ids = IdsWithin("1 hour", id="header:id")
    put(rig, ["x", "y", "x", "z"], in_header=True)
    put(rig, ["y", "v"], partition=1, in_header=True)
    assert sorted(values(run(rig, stream(rig, ids)))) == ["v", "x", "y", "z"]
    put(rig, ["z", "w", "w", "x"], in_header=True)
    assert values(run(rig, stream(rig, ids))) == ["w"]
