"""What the contestants of the Kafka benchmark find: a broker, topics with records, an empty topic, a clock, Spark."""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fastavro
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from bench.cpu import cpu_s
from bench.jars import NotAvailable, spark_avro_jar, spark_jars
from bench.orders import AVRO
from bench.world import PARTITIONS, SEED
from onefold.local import KafkaServer
from onefold.sources import KafkaSource
from onefold.spark.session import spark_session
from onefold.trials.workload.orders import orders

__all__ = ["SCHEMA_ID", "Place", "Spent"]

SCHEMA_ID = 1
_HEAD = b"\0" + SCHEMA_ID.to_bytes(4, "big")  # what Confluent's serializers put in front


@dataclass
class Spent:
    """Seconds on the clock, and CPU seconds of the contestant (with its JVM and all its processes) and the broker."""

    seconds: float = 0.0
    client_s: float = 0.0
    broker_s: float = 0.0


@dataclass
class Place:
    directory: Path
    server: KafkaServer
    rows: int
    say: Callable[[str], None]
    _spark: SparkSession | None = field(default=None, repr=False)
    _missing: dict[str, str] = field(default_factory=dict)  # jars by what needs them, with the reason

    @property
    def servers(self) -> str:
        return self.server.bootstrap_servers

    @contextmanager
    def clock(self) -> Iterator[Spent]:
        """Times what is done inside."""
        spent = Spent()
        broker = self.server.status().pid
        client, server, began_s = cpu_s(os.getpid()), cpu_s(broker), time.perf_counter()
        yield spent
        spent.seconds = time.perf_counter() - began_s
        spent.client_s, spent.broker_s = cpu_s(os.getpid()) - client, cpu_s(broker) - server

    def records(self, form: str) -> str:
        """The topic with as many records of that form ("JSON", "Avro", "Avro, registry"); the same in every run."""
        values = {"JSON": orders, "Avro": _avro, "Avro, registry": _framed}[form]
        name = f"bench-{form.lower().replace(', ', '-')}-{self.rows}-{PARTITIONS}-{SEED}"
        if self._count(name) == self.rows:
            return name
        self.say(f"producing {self.rows:,} records into {name}")
        self._make(name)
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 50, "compression.type": "lz4"})
        for number, value in enumerate(values(self.rows, SEED)):
            while True:
                try:
                    producer.produce(name, value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60):
            raise RuntimeError(f"the broker did not acknowledge all records of {name}")
        return name

    @contextmanager
    def target(self, markers_max: int = 0) -> Iterator[str]:
        """An empty topic, which must have all rows at the end, and nothing open; then it is deleted.

        Transactions leave up to so many markers behind, which count as offsets.
        """
        name = f"bench_{uuid.uuid4().hex[:8]}"
        self._make(name)
        yield name
        found = self._count(name)
        if not self.rows <= found <= self.rows + markers_max:
            raise RuntimeError(f"the topic has {found:,} records, and {self.rows:,} rows were to be written")
        admin = self._admin()
        admin.delete_topics([name])[name].result()

    @property
    def spark(self) -> SparkSession:
        """The one session of the run, with two cores."""
        if self._spark is None:
            jars: list[Path] = []
            for what, find in (("kafka", spark_jars), ("avro", spark_avro_jar)):
                try:
                    jars += find()
                except NotAvailable as error:
                    self._missing[what] = str(error)
            settings = {"spark.driver.memory": "3g", "spark.jars": ",".join(map(str, jars))}
            self._spark = spark_session("onefold bench", self.directory / "spark", master="local[2]", **settings)
        return self._spark

    def require(self, what: str) -> None:
        """Raise `NotAvailable` unless Spark has its own connector ("kafka"), its own Avro ("avro")."""
        assert self.spark
        if what in self._missing:
            raise NotAvailable(self._missing[what])

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": "3"})

    def _make(self, name: str) -> None:
        admin = self._admin()
        if name in admin.list_topics(timeout=30).topics:  # of a run that was interrupted while it produced
            admin.delete_topics([name])[name].result()
            time.sleep(1.0)
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
        while len(admin.list_topics(name, timeout=30).topics[name].partitions) < PARTITIONS:
            time.sleep(0.1)

    def _count(self, name: str) -> int:
        """Offsets up to the last stable one; 0 without such a topic."""
        if name not in self._admin().list_topics(timeout=30).topics:
            return 0
        ends = KafkaSource(name, bootstrap_servers=self.servers, starting_offsets="latest").initial_positions()
        return sum(ends.topics()[name].values())


def _avro(rows: int, seed: int) -> Iterable[bytes]:
    schema = fastavro.parse_schema(AVRO)
    values = (json.loads(value) for value in orders(rows, seed))
    for row in values:
        data = io.BytesIO()
        row["at"] = pa.scalar(row["at"]).cast(pa.timestamp("us", "UTC")).value
        fastavro.schemaless_writer(data, schema, row)
        yield data.getvalue()


def _framed(rows: int, seed: int) -> Iterable[bytes]:
    return (_HEAD + value for value in _avro(rows, seed))
