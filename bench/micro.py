"""What a micro-batch costs that has hardly any rows: the overhead of each batch, beside Spark's noop sink."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from bench.world import DDL, World
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.spark import EpochWriter, register

__all__ = ["MICRO", "BatchTimes", "run_micro"]

WARM_UP = 3  # the first batches open sinks, connections and consumers
TRIGGER: dict[str, Any] = {"availableNow": True}


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Milliseconds of each micro-batch, as Spark reports them (`durationMs.triggerExecution`)."""

    contestant: str
    batch_ms: tuple[int, ...]
    write_ms: tuple[int, ...]  # of which: addBatch, the sink's part

    @property
    def median_ms(self) -> float:
        return statistics.median(self.batch_ms)

    @property
    def p95_ms(self) -> float:
        return float(sorted(self.batch_ms)[int(len(self.batch_ms) * 0.95)])


def run_micro(world: World, names: Iterable[str], rows_per_batch: int, batches: int) -> list[BatchTimes]:
    """Each contestant once over the same topic."""
    rows = rows_per_batch * (batches + WARM_UP)
    assert batches + WARM_UP <= 100, "Spark keeps the progress of its newest 100 batches"
    topic = world.topic(rows)
    times = []
    for name in names:
        columns = DDL if name != "noop" else None
        world.say(f"micro-batches: {name}")
        with world.checkpoint() as root:
            if columns is None:
                query = _noop(world, topic, rows_per_batch, root)
                query.awaitTermination()
            else:
                with world.table(rows) as table:
                    query = MICRO[name](world, topic, table, rows_per_batch, root)
            progress = [p for p in query.recentProgress if p["numInputRows"]][WARM_UP:]
        assert len(progress) == batches, (len(progress), batches)
        durations = [p["durationMs"] for p in progress]
        times.append(
            BatchTimes(
                name, tuple(d["triggerExecution"] for d in durations), tuple(d.get("addBatch", 0) for d in durations)
            )
        )
    return times


def _noop(world: World, topic: str, rows_per_batch: int, root: str) -> StreamingQuery:
    register(world.spark)
    options = world.source(topic, rows_per_batch).options()
    df = world.spark.readStream.format("onefold_kafka").options(**options).load()
    writer = df.writeStream.format("noop").option("checkpointLocation", root)
    return writer.trigger(availableNow=True).start()


def _flow(delivery: str) -> Callable[[World, str, str, int, str], StreamingQuery]:
    def run(world: World, topic: str, table: str, rows_per_batch: int, root: str) -> StreamingQuery:
        flow = Flow(table)
        sink = PostgresSink(world.postgres.url, table, delivery=delivery)
        flow.source(world.source(topic, rows_per_batch), uid="events").sink(sink)
        with closing(flow.start(world.spark, checkpoint=root, trigger=TRIGGER)) as running:
            running.await_termination()
        query: StreamingQuery = running.query
        return query

    return run


def _writer(delivery: str) -> Callable[[World, str, str, int, str], StreamingQuery]:
    def run(world: World, topic: str, table: str, rows_per_batch: int, root: str) -> StreamingQuery:
        register(world.spark)
        options = world.source(topic, rows_per_batch).options()
        df = world.spark.readStream.format("onefold_kafka").options(**options).load()
        with closing(EpochWriter(table, [PostgresSink(world.postgres.url, table, delivery=delivery)])) as writer:
            started = df.writeStream.foreachBatch(writer).option("checkpointLocation", root).trigger(**TRIGGER)
            query = started.start()
            writer.await_termination(query)
        return query

    return run


MICRO: dict[str, Callable[[World, str, str, int, str], StreamingQuery]] = {
    "writer": _writer("two_phase"),
    "writer_staged": _writer("staged"),
    "flow": _flow("two_phase"),
    "flow_staged": _flow("staged"),
}
