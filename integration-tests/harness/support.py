"""What the tests of the Spark runtime share: one topic, one table, and the question whether the two agree."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.kafka.topics import in_order
from pyspark.sql import DataFrame, SparkSession

from onefold.core import Sink
from onefold.core.protocol import coordinator
from onefold.core.protocol.epoch import Outcome
from onefold.core.source import Source
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import register
from onefold.spark.epoch_writer import EpochWriter
from onefold.spark.flows.flow_writer import FlowQuery, FlowWriter
from onefold.store.job.offset_json import parse_offsets

SCHEMA = "id long, n long"
AVAILABLE_NOW = {"availableNow": True}
WAIT_S = 120
PATIENCE_S = 300.0


class CrashError(Exception):
    """Stands for the death of the driver: no error of onefold's, so that nothing is tidied up."""


def failing_at(monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], None]) -> None:
    """Do `act` once, when the driver passes the failpoint `place`."""
    passed = []

    def failpoint(name: str) -> None:
        if name == place and not passed:
            passed.append(name)
            act()

    monkeypatch.setattr(coordinator, "failpoint", failpoint)


def crash() -> None:
    raise CrashError


class Rig:
    """A topic with numbered records, a Postgres database, and pipelines between them."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, url: str, directory: Path) -> None:
        self.spark, self.servers, self.topic, self.url, self.directory = spark, servers, topic, url, directory
        self.sent: list[tuple[int, int]] = []
        self.outcomes: list[Outcome] = []
        self.pipelines: list[EpochWriter | FlowQuery] = []

    def put(self, count: int, partitions: int = 4) -> None:
        """`count` more records, spread over the partitions."""
        first = len(self.sent)
        records = [(i, i * i % 1009) for i in range(first, first + count)]
        self.put_values([b'{"id":%d,"n":%d}' % record for record in records], partitions)
        self.sent += records

    def put_values(self, values: list[bytes], partitions: int = 4, topic: str | None = None) -> None:
        producer = in_order(self.servers)
        for number, value in enumerate(values):
            producer.produce(topic or self.topic, value, partition=number % partitions)
        assert producer.flush(30) == 0

    def source(self, *, at_most: int | None = 300, **more: Any) -> KafkaSource:
        settings: dict[str, Any] = {"format": "json", "schema": SCHEMA, "max_offsets_per_trigger": at_most, **more}
        return KafkaSource(self.topic, bootstrap_servers=self.servers, **settings)

    def sink(self, delivery: str = "two_phase", table: str = "rows", **more: Any) -> PostgresSink:
        return PostgresSink(self.url, table=table, delivery=delivery, **more)

    def flow(
        self,
        *sinks: Sink,
        name: str = "test",
        source: Source | None = None,
        change: Callable[[Any], Any] = lambda stream: stream,
        dead_letters: Sink | None = None,
    ) -> Flow:
        """From the topic, or another source, through `change` into these sinks."""
        flow = Flow(name)
        stream = change(flow.source(source or self.source(), uid="source", dead_letters=dead_letters))
        for sink in sinks or [self.sink()]:
            stream.sink(sink)
        return flow

    def pipeline(
        self,
        *sinks: Sink,
        name: str = "test",
        source: Source | None = None,
        change: Callable[[Any], Any] = lambda stream: stream,
        dead_letters: Sink | None = None,
        **more: Any,
    ) -> FlowWriter:
        """What runs such a flow on Spark; `more` is what `FlowWriter` takes."""
        graph = self.flow(*sinks, name=name, source=source, change=change, dead_letters=dead_letters).graph()
        made = FlowWriter(graph, on_outcome=self.outcomes.append, patience_s=60, **more)
        self.pipelines.append(made)
        return made

    def writer(self, *sinks: Sink, name: str = "test", **more: Any) -> EpochWriter:
        """Of a query of one's own."""
        made = EpochWriter(name, sinks or [self.sink()], on_outcome=self.outcomes.append, patience_s=60, **more)
        self.pipelines.append(made)
        return made

    def stream(self, source: KafkaSource | None = None) -> DataFrame:
        """The topic, as a job of one's own reads it."""
        register(self.spark)
        return self.spark.readStream.format("onefold_kafka").options(**(source or self.source()).options()).load()

    def close(self) -> None:
        """Let go of what a test left: a closed pipeline that was asked something has connections again."""
        for query in self.spark.streams.active:
            query.stop()
        for pipeline in self.pipelines:
            pipeline.close()

    @property
    def sqlite(self) -> str:
        return f"sqlite:///{self.directory / 'store.db'}"

    def checkpoint(self, name: str = "checkpoint") -> str:
        return str(self.directory / name)

    def run(self, pipeline: FlowWriter, checkpoint: str = "checkpoint") -> list[Outcome]:
        """Let the flow come to the topic's end, close it, and return what became of each epoch."""
        self.outcomes.clear()
        try:
            self.finish(pipeline, pipeline.start(self.spark, self.checkpoint(checkpoint), AVAILABLE_NOW))
        finally:
            pipeline.close()
        return list(self.outcomes)

    def start(self, pipeline: EpochWriter, df: DataFrame, checkpoint: str = "checkpoint", **settings: str) -> Any:
        """The query as a job that is there already would start it, through foreachBatch."""
        writer = df.writeStream.foreachBatch(pipeline).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self.checkpoint(checkpoint))
        return writer.outputMode(settings.get("outputMode", "append")).start()

    def finish(self, pipeline: EpochWriter, query: Any) -> None:
        try:
            assert pipeline.await_termination(query, WAIT_S), f"the query still runs after {WAIT_S} s"
        finally:
            query.stop()

    def forget_commit(self, batch: int, checkpoint: str = "checkpoint") -> None:
        """As if Spark had died before it wrote down that the batch was done."""
        for name in (str(batch), f".{batch}.crc"):
            (Path(self.checkpoint(checkpoint)) / "commits" / name).unlink()

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str = "rows") -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT id, n FROM {table} ORDER BY id, n")

    def assert_exact(self, table: str = "rows") -> None:
        """Every record of the topic is in the table, once, and nothing else; and nothing is in doubt."""
        found = self.rows(table)
        assert len(found) == len(self.sent)
        assert found == self.sent
        self.assert_nothing_in_doubt()

    def assert_nothing_in_doubt(self) -> None:
        assert self.prepared() == []
        assert self.sql("SELECT * FROM onefold_sinks.onefold_staged") == []

    def prepared(self) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        return [gid for (gid,) in self.sql(query)]


def through_spark(stream: Any) -> Any:
    """The same rows, by an operator that Spark runs."""
    return stream.spark_dataframe(lambda rows: rows, stream.schema)


def offsets_of(checkpoint: str, batch: int) -> Mapping[str, Mapping[int, int]]:
    """What Spark wrote down as the end of a batch."""
    return parse_offsets((Path(checkpoint) / "offsets" / str(batch)).read_text().splitlines()[-1:]).topics()


def host_and_port(server: Any) -> tuple[str, int]:
    """Where a server is reached, of those whose address is only that."""
    host, _, port = server.status().address.rpartition(":")
    return host, int(port)


def fresh(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


def wait_until(condition: Callable[[], bool], doing: str) -> None:
    """Look every 20 ms. It fails after longer than anything takes here, however busy the machine is."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{doing} took more than {PATIENCE_S:.0f} s"
        time.sleep(0.02)
