"""A process with three aggregating queries, there to be killed: `python -m harness.aggregating_job JOB.json`."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.flow import Flow
from onefold.sinks import HBaseSink, PostgresSink
from onefold.sources import KafkaSource
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.session import spark_session

BEGIN_S = 1_800_000_000
WINDOW_S, GAP_S, LATE_S = 10, 5, 20
ROW_KEY = "start integer, account integer"
TOTALS = "start long, account long, n long, total long"  # columns of each query
QUERIES = ("changes", "windows", "sessions")

Totals = list[tuple[int, ...]]


@dataclass(frozen=True)
class Purchase:
    at_s: int
    account: int
    amount: int

    def value(self) -> bytes:
        return json.dumps({"at": self.at_s, "account": self.account, "amount": self.amount}).encode()


def purchases(start: int, stop: int) -> list[Purchase]:
    """In no strict order of time, but none later than its watermark; each account comes in bursts."""
    return [Purchase(BEGIN_S + 2 * (n // 3 + n * 7 % 4), n // 50 % 5, n * n % 97) for n in range(start, stop)]


def closed_by(all_: list[Purchase]) -> int:
    """The watermark behind all of them."""
    return max(each.at_s for each in all_) - LATE_S


def expected_changes(all_: list[Purchase]) -> Totals:
    """Each window's start, account, count and sum."""
    begun = sorted(all_, key=_window)
    return [
        (*window, len(inside := [*each]), sum(one.amount for one in inside)) for window, each in groupby(begun, _window)
    ]


def expected_windows(all_: list[Purchase]) -> Totals:
    """The same of the windows that are over."""
    return [row for row in expected_changes(all_) if row[0] + WINDOW_S <= closed_by(all_)]


def expected_sessions(all_: list[Purchase]) -> Totals:
    """Each session that is over: its first second, account, count and sum."""
    found = [
        (burst[0].at_s, burst[0].account, len(burst), sum(each.amount for each in burst))
        for burst in _bursts(sorted(all_, key=lambda each: (each.account, each.at_s)))
        if burst[-1].at_s + GAP_S <= closed_by(all_)
    ]
    return sorted(found)


def _window(purchase: Purchase) -> tuple[int, int]:
    return purchase.at_s // WINDOW_S * WINDOW_S, purchase.account


def _bursts(in_order: list[Purchase]) -> Iterator[list[Purchase]]:
    burst: list[Purchase] = []
    for each in in_order:
        if burst and (each.account != burst[-1].account or each.at_s - burst[-1].at_s >= GAP_S):
            yield burst
            burst = []
        burst.append(each)
    yield burst


@dataclass(frozen=True)
class AggregatingJob:
    """What the process is told. Each query is a pipeline, a table and a checkpoint of its own."""

    servers: str
    topic: str
    url: str
    directory: str
    at_most: int
    hbase: str | None = None  # whose table `changes_TOPIC` the changes go to instead

    def pipeline(self, query: str) -> FlowWriter:
        store = PostgresSink(self.url, query).store_url()
        return FlowWriter(self._flow(query).graph(), store, patience_s=60)

    def run(self, spark: SparkSession, query: str) -> None:
        """Let one query come to the topic's end."""
        with closing(self.pipeline(query)) as pipeline:
            checkpoint = str(Path(self.directory) / "checkpoints" / query)
            pipeline.await_termination(pipeline.start(spark, checkpoint, {"availableNow": True}))

    def _flow(self, query: str) -> Flow:
        flow = Flow(query)
        source = KafkaSource(
            self.topic,
            bootstrap_servers=self.servers,
            format="json",
            schema="at long, account long, amount long",
            max_offsets_per_trigger=self.at_most,
        )
        mode: Literal["append", "update"] = "update" if query == "changes" else "append"
        function = partial(aggregated, query=query)
        flow.source(source, uid="purchases").spark_dataframe(function, TOTALS, mode).sink(self._sink(query))
        return flow

    def _sink(self, query: str) -> PostgresSink | HBaseSink:
        if query == "changes" and self.hbase:
            return HBaseSink(self.hbase, f"changes_{self.topic}", row_key=ROW_KEY, family="f")
        if query == "changes":
            key = ("start", "account")
            return PostgresSink(self.url, query, mode="upsert", key=key, order="onefold_epoch")
        return PostgresSink(self.url, query, delivery="two_phase" if query == "windows" else "staged")


def aggregated(df: DataFrame, query: str) -> DataFrame:
    timed = df.withColumn("at", F.timestamp_seconds("at")).withWatermark("at", f"{LATE_S} seconds")
    windows, sessions = F.window("at", f"{WINDOW_S} seconds"), F.session_window("at", f"{GAP_S} seconds")
    span = (sessions if query == "sessions" else windows).alias("span")
    totals = timed.groupBy(span, "account").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    return totals.select(F.unix_seconds("span.start").alias("start"), "account", "n", "total")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    job = AggregatingJob(**json.loads(Path(sys.argv[1]).read_text()))
    spark = spark_session("aggregating job", Path(job.directory) / "spark", "local[2]")
    failed: list[str] = []

    def run(query: str) -> None:
        try:
            # Formats are registered with a session, by one thread at a time; a thread finds those of its active one.
            own, jvm = spark.newSession(), spark._jvm
            assert jvm is not None, "only Spark Connect has none"
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(own._jsparkSession)
            job.run(own, query)
        except Exception:
            logging.getLogger("onefold").exception(query)
            failed.append(query)

    threads = [threading.Thread(target=run, args=(query,), name=query) for query in QUERIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
