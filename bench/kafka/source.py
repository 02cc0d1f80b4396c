"""A topic into Arrow columns, and nowhere else: by two processes, and through Spark on two cores."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, expr, from_json

from bench.kafka.place import SCHEMA_ID, Place, Spent
from bench.orders import AVRO, SCHEMA
from bench.team import Job, Team
from bench.world import PARTITIONS
from bench.world import SCHEMA as DDL
from onefold.sources import KafkaSource
from onefold.sources.kafka import RAW_COLUMNS, OffsetRange, fetch, read
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.spark import register

__all__ = ["FORMATS", "consume", "fetch_alone", "in_spark", "read_alone", "with_sparks_connector"]

FORMATS = ("raw", "JSON", "Avro", "Avro, registry")
_AVRO = json.dumps(AVRO)
_SHARES = [list(range(first, PARTITIONS, 2)) for first in (0, 1)]


def consume(place: Place) -> Spent:
    """confluent-kafka alone, without garbage collection, no value looked at."""
    topic = place.records("JSON")
    with Team(_consume, [(place.servers, topic, share, place.rows) for share in _SHARES]) as team:
        return _timed(place, team)


def fetch_alone(place: Place, compiled: str) -> Spent:
    """The source's fetching, no value looked at."""
    topic = place.records("JSON")
    with Team(_fetch, [(place.servers, topic, share, place.rows, compiled) for share in _SHARES]) as team:
        return _timed(place, team)


def read_alone(place: Place, form: str, compiled: str) -> Spent:
    """What each task of the direct path does: fetch and parse."""
    schema = {"raw": RAW_COLUMNS, "JSON": SCHEMA}.get(form, AvroSchema(_AVRO).arrow)
    with (
        _source(place, form, compiled) as source,
        Team(_read, [(source, schema, share, place.rows) for share in _SHARES]) as team,
    ):
        return _timed(place, team)


def in_spark(place: Place, form: str, compiled: str) -> Spent:
    register(place.spark)
    with _source(place, form, compiled) as source:
        df = place.spark.read.format("onefold_kafka").options(**source.options()).load()
        return _drained(place, df)


def with_sparks_connector(place: Place, form: str) -> Spent:
    """Spark's own: its Kafka connector, from_json, from_avro. For a registry's id it has nothing: cut off."""
    place.require("kafka")
    topic = place.records("JSON" if form == "raw" else form)
    options = {"kafka.bootstrap.servers": place.servers, "subscribe": topic, "startingOffsets": "earliest"}
    df = place.spark.read.format("kafka").options(**options).load()
    if form == "JSON":
        df = df.select(from_json(col("value").cast("string"), DDL).alias("r")).select("r.*")
    elif form != "raw":
        place.require("avro")
        from pyspark.sql.avro.functions import from_avro

        value = expr("value" if form == "Avro" else "substring(value, 6)")
        df = df.select(from_avro(value, _AVRO).alias("r")).select("r.*")
    return _drained(place, df)


def _drained(place: Place, df: DataFrame) -> Spent:
    with place.clock() as spent:
        df.write.format("noop").mode("overwrite").save()
    return spent


def _timed(place: Place, team: Team) -> Spent:
    with place.clock() as spent:
        team.go(None)
        taken = sum(team.answers())
    if taken != place.rows:
        raise RuntimeError(f"{taken:,} records were read, of {place.rows:,}")
    return spent


@contextmanager
def _source(place: Place, form: str, compiled: str) -> Iterator[KafkaSource]:
    topic = place.records("JSON" if form == "raw" else form)
    common = {"bootstrap_servers": place.servers, "compiled_fetch": compiled}
    match form:
        case "raw":
            yield KafkaSource(topic, **common)
        case "JSON":
            yield KafkaSource(topic, format="json", schema=DDL, **common)
        case "Avro":
            yield KafkaSource(topic, format="avro", avro_schema=_AVRO, **common)
        case _:
            with _registry() as url:
                yield KafkaSource(topic, format="avro", avro_schema=_AVRO, schema_registry=url, **common)


def _consume(servers: str, topic: str, partitions: Sequence[int], rows: int) -> Job:
    gc.disable()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "not used", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partitions[0], 0)])
    assert consumer.consume(1, 30.0)
    yield
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    left = sum(len(range(partition, rows, PARTITIONS)) for partition in partitions)
    taken = 0
    while taken < left:
        for message in consumer.consume(10_000, 1.0):
            if (error := message.error()) is not None:
                raise RuntimeError(error.str())
            taken += 1
    yield taken


def _fetch(servers: str, topic: str, partitions: Sequence[int], rows: int, compiled: str) -> Job:
    for wanted in _ranges(topic, partitions, 1 + max(partitions)):
        assert list(fetch(servers, {}, wanted, compiled=compiled))
    yield
    yield sum(
        len(records)
        for wanted in _ranges(topic, partitions, rows)
        for records in fetch(servers, {}, wanted, compiled=compiled)
    )


def _read(source: KafkaSource, schema: pa.Schema, partitions: Sequence[int], rows: int) -> Job:
    for wanted in _ranges(source.topics[0], partitions, 1 + max(partitions)):
        assert list(read(source, schema, wanted))
    yield
    yield sum(
        batch.num_rows
        for wanted in _ranges(source.topics[0], partitions, rows)
        for batch in read(source, schema, wanted)
    )


def _ranges(topic: str, partitions: Sequence[int], rows: int) -> list[OffsetRange]:
    """The first so many records of the topic, as far as they are in these partitions."""
    return [OffsetRange(topic, number, 0, len(range(number, rows, PARTITIONS))) for number in partitions]


@contextmanager
def _registry() -> Iterator[str]:
    """A schema registry with one schema: what its readers ask for is GET /schemas/ids/1."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name is http.server's
        known = self.path.partition("?")[0] == f"/schemas/ids/{SCHEMA_ID}"
        answer = {"schema": _AVRO} if known else {"error_code": 40403, "message": "no such schema"}
        text = json.dumps(answer).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the client says what went wrong."""
