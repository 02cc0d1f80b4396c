"""What every contestant finds: servers, topics with events, one warm Spark session, an empty table."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from bench.cpu import cpu_s
from bench.jars import NotAvailable, spark_jars
from onefold.local import KafkaServer, PostgresServer
from onefold.sources import KafkaSource
from onefold.spark.session import spark_session
from onefold.trials.workload.orders import produce

__all__ = ["DDL", "PARTITIONS", "SCHEMA", "Used", "World", "open_world"]

PARTITIONS = 4
SEED = 1
SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"
DDL = "id bigint, account bigint, amount numeric(12,2), at timestamptz"


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds of the contestant (its JVM and all its Python processes) and of the two servers."""

    client_s: float
    postgres_s: float
    kafka_s: float

    def since(self, before: Used) -> Used:
        return Used(self.client_s - before.client_s, self.postgres_s - before.postgres_s, self.kafka_s - before.kafka_s)


@dataclass
class World:
    directory: Path
    kafka: KafkaServer
    postgres: PostgresServer
    say: Callable[[str], None]
    unavailable: str | None = None  # why the contestants that need jars cannot take part
    _spark: SparkSession | None = field(default=None, repr=False)

    @property
    def spark(self) -> SparkSession:
        """The one session of the run, with two cores."""
        if self._spark is None:
            settings = {"spark.driver.memory": "3g", "spark.ui.showConsoleProgress": "false"}
            try:
                settings["spark.jars"] = ",".join(map(str, spark_jars()))
            except NotAvailable as error:
                self.unavailable = str(error)
            self._spark = spark_session("onefold bench", self.directory / "spark", master="local[2]", **settings)
        return self._spark

    def source(self, topic: str, rows_per_batch: int | None, compiled_fetch: str = "auto") -> KafkaSource:
        return KafkaSource(
            topic,
            bootstrap_servers=self.kafka.bootstrap_servers,
            format="json",
            schema=SCHEMA,
            max_offsets_per_trigger=rows_per_batch,
            compiled_fetch=compiled_fetch,
        )

    def topic(self, rows: int) -> str:
        """The topic with this many events: the same ones in every run, so made only once."""
        name = f"events-{rows}-{PARTITIONS}-{SEED}"
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        source = KafkaSource(
            name, bootstrap_servers=self.kafka.bootstrap_servers, format="raw", starting_offsets="latest"
        )
        if name in admin.list_topics(timeout=30).topics:
            if sum(source.initial_positions().topics()[name].values()) == rows:
                return name
            admin.delete_topics([name])[name].result()  # a run that was interrupted while it produced
            time.sleep(1.0)
        self.say(f"producing {rows:,} events into {name}")
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
        produce(self.kafka.bootstrap_servers, name, PARTITIONS, rows, SEED, lambda _: None)
        return name

    @contextmanager
    def table(self, rows: int, columns: str = DDL) -> Iterator[str]:
        """An empty table, which must have this many rows at the end; then it is dropped."""
        name = f"bench_{uuid.uuid4().hex[:8]}"
        self.sql(f"CREATE TABLE {name} ({columns})")
        self.sql("CHECKPOINT")
        try:
            yield name
            found = self.sql(f"SELECT count(*) FROM {name}")[0][0]
            if found != rows:
                raise RuntimeError(f"the table has {found:,} rows, and {rows:,} events were to be written")
        finally:
            self.sql(f"DROP TABLE {name}")

    @contextmanager
    def checkpoint(self) -> Iterator[str]:
        """A new directory for Spark's checkpoint."""
        root = self.directory / "checkpoints" / uuid.uuid4().hex
        try:
            yield str(root)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def jdbc_url(self) -> str:
        with psycopg.connect(self.postgres.url) as connection:
            at = connection.info
            place = f"jdbc:postgresql://{at.host}:{at.port}/{at.dbname}"
            return f"{place}?user={at.user}&password={at.password}&reWriteBatchedInserts=true"

    def used(self) -> Used:
        return Used(cpu_s(os.getpid()), cpu_s(self.postgres.status().pid), cpu_s(self.kafka.status().pid))


@contextmanager
def open_world(directory: Path, say: Callable[[str], None]) -> Iterator[World]:
    """Start the servers; whatever happens inside, stop them and Spark."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ending:
        kafka, postgres = KafkaServer(directory), PostgresServer(directory)
        for server in (kafka, postgres):
            ending.callback(server.stop)
            server.start()
        world = World(directory, kafka, postgres, say)
        for schema in ("onefold_sinks", "public"):  # what earlier runs left would only grow
            world.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        world.sql("CREATE SCHEMA public")
        ending.callback(_end, world)
        yield world


def _end(world: World) -> None:
    if world._spark is not None:
        world._spark.stop()
    shutil.rmtree(world.directory / "checkpoints", ignore_errors=True)
