"""Rows that are in memory already, into a topic with four partitions: by two processes, and through Spark."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from bench.epochs import Epochs, new_store
from bench.kafka.place import Place, Spent
from bench.postgres.tables import SCHEMA, SPLITS, make_rows
from bench.team import Job, Team
from bench.world import PARTITIONS
from onefold.clients.kafka.client_roles import PRODUCER
from onefold.core import TaskId
from onefold.sinks import KafkaSink
from onefold.sinks.kafka.encoding import RecordEncoding
from onefold.spark import EpochWriter

__all__ = ["produce", "produce_encoded", "through_sparks_sink", "through_the_pipeline", "through_the_sink"]

BATCH_ROWS = 10_000  # as Spark hands them out
_WITHIN: dict[str, dict[str, Any]] = {
    "transactional": {"key": "id"},
    "keyed": {"delivery": "keyed", "id": "id"},
}  # the same records


def through_the_sink(place: Place, mode: str, rows_per_epoch: int | None) -> Spent:
    """Arrow batches in, committed records out: epochs of the whole protocol, with a writer in each process."""
    paths = _paths(place)
    epochs_count = 1 if rows_per_epoch is None else -(-place.rows // rows_per_epoch)
    with place.target(_markers_max(epochs_count)) as topic, new_store(place.directory) as store:
        sink = KafkaSink(topic, bootstrap_servers=place.servers, **_WITHIN[mode])
        epochs = Epochs(sink, topic, store, SCHEMA)
        with Team(_write, [(sink, path, epochs_count) for path in paths]) as team, place.clock() as spent:
            for _ in range(epochs_count):
                epochs.run(team)
        epochs.close()
    return spent


def produce(place: Place) -> Spent:
    """An idempotent producer, as people write it: a dict of each row, json.dumps, produce, poll."""
    paths = _paths(place)
    with place.target() as topic, Team(_produce, [(place.servers, topic, path) for path in paths]) as team:
        return _timed(place, team)


def produce_encoded(place: Place) -> Spent:
    """The same producer with our settings, its records made beforehand: the limit of whatever calls produce()."""
    paths = _paths(place)
    with place.target() as topic, Team(_produce_encoded, [(place.servers, topic, path) for path in paths]) as team:
        return _timed(place, team)


def through_the_pipeline(place: Place, mode: str) -> Spent:
    target, new = place.target(_markers_max(1)), new_store(place.directory)
    with _rows(place) as df, target as topic, new as store, place.clock() as spent:
        sink = KafkaSink(topic, bootstrap_servers=place.servers, **_WITHIN[mode])
        pipeline = EpochWriter(topic, sinks=[sink], store=store)
        pipeline.write_batch(df, run="bench")
        pipeline.close()
    return spent


def through_sparks_sink(place: Place) -> Spent:
    """Spark's own Kafka sink: at least once."""
    place.require("kafka")
    with _rows(place) as df, place.target() as topic, place.clock() as spent:
        records = df.selectExpr("cast(id as string) key", "to_json(struct(*)) value")
        records.write.format("kafka").options(**{"kafka.bootstrap.servers": place.servers}, topic=topic).save()
    return spent


@contextmanager
def _rows(place: Place) -> Iterator[DataFrame]:
    """The rows in Spark's memory: how fast Spark reads Parquet is not the question."""
    paths = _paths(place)
    df = place.spark.read.parquet(*map(str, paths)).repartition(len(paths)).persist()
    df.count()
    try:
        yield df
    finally:
        df.unpersist(blocking=True)


def _paths(place: Place) -> list[Path]:
    return make_rows(Path(tempfile.gettempdir(), "onefold-bench"), "append", place.rows, seed=1)


def _markers_max(epochs: int) -> int:
    return epochs * SPLITS * PARTITIONS


def _timed(place: Place, team: Team) -> Spent:
    with place.clock() as spent:
        team.go(None)
        team.answers()
    return spent


def _write(sink: KafkaSink, path: Path, epochs: int) -> Job:
    batches = _batches(path)
    task: TaskId = yield
    first = task.epoch
    while True:
        number = task.epoch - first  # an epoch may run again
        writer = sink.writer(task.another_attempt())
        for batch in batches[number * len(batches) // epochs : (number + 1) * len(batches) // epochs]:
            writer.write(batch)
        task = yield writer.prepare()


def _produce(servers: str, topic: str, path: Path) -> Job:
    batches = _batches(path)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20})
    yield
    for batch in batches:
        for row in batch.to_pylist():
            value = json.dumps(row, default=str)
            while True:
                try:
                    producer.produce(topic, value, str(row["id"]))
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
    yield producer.flush()


def _produce_encoded(servers: str, topic: str, path: Path) -> Job:
    encoding = RecordEncoding("json", ("id",))
    records = [one for batch in _batches(path) for one in encoding.records(batch)]
    producer = Producer(PRODUCER.config(servers, {}))
    yield
    for one in records:
        for value, key in zip(one.values, one.keys or (), strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    yield producer.flush()


def _batches(path: Path) -> list[pa.RecordBatch]:
    return pq.read_table(path, schema=SCHEMA).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
