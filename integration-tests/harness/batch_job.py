"""A process with batch runs, there to be killed: `python -m harness.batch_job JOB.json` writes one run
in many ways at once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from onefold.core.checks import present
from onefold.sinks import PostgresSink
from onefold.spark import BatchOutcome, EpochWriter, register
from onefold.spark.session import spark_session

ROWS = 300
PARTITIONS, TASKS = 3, 5  # before a shuffle and behind it
COLUMNS = "id long, n long"
ON_CLUSTER = {  # each executor that dies has the tasks of all ways fail
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "20",
}
RUN = "night"


@dataclass(frozen=True)
class BatchJob:
    """What the process is told. Each way, `format_1` or `two_phase_1`, is a pipeline and a table of its own."""

    url: str
    directory: str
    ways: tuple[str, ...]
    formats: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)  # of ways; else Postgres'
    master: str = "local[4,2]"  # a task may fail once

    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id * 2 AS n")

    def rows_at_the_second_try(self, spark: SparkSession, way: str) -> DataFrame:
        """The same, but the first attempt of the second task fails half way."""
        flag = Path(self.directory) / f"{way}-failed-once"

        def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                if batch.column("id")[0].as_py() == ROWS // 3 and not flag.exists():
                    flag.touch()
                    raise RuntimeError("this task fails once")
                yield batch.slice(half)

        return self.rows(spark).mapInArrow(fail_once, COLUMNS)

    def rows_of_a_killed_executor(self, spark: SparkSession, way: str) -> DataFrame:
        """The same behind a shuffle; the first task that has a row of the last ones kills its executor half way, and
        with it the shuffle's files and what its earlier tasks have prepared."""
        directory = Path(self.directory)

        def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            (directory / f"{way}-shuffled-{uuid.uuid4()}").touch()

        def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            flag, context = directory / f"{way}-executor", present(TaskContext.get(), "in a task")
            for batch in batches:
                yield batch
                if context.partitionId() == TASKS - 1 and not flag.exists():
                    flag.touch()
                    os.kill(executor_of(os.getpid()), signal.SIGKILL)
                    time.sleep(60)

        told = self.rows(spark).mapInArrow(tell, COLUMNS)
        return told.repartition(TASKS, "id").mapInArrow(die_once, COLUMNS)

    def write(self, df: DataFrame, way: str) -> BatchOutcome | None:
        kind, _, _ = way.rpartition("_")
        if kind.startswith("format"):
            of_postgres = ("onefold_postgres", {"url": self.url, "table": way, "pipeline": way})
            name, options = self.formats.get(way, of_postgres)
            df.write.format(name).options(**options, run=RUN).mode("append").save()
            return None
        with closing(EpochWriter(way, sinks=[PostgresSink(self.url, table=way, delivery=kind)])) as pipeline:
            return pipeline.write_batch(df, RUN)


def executor_of(worker: int) -> int:
    """The JVM that a Python worker works for."""
    process = psutil.Process(worker)
    return next(parent.pid for parent in process.parents() if "java" in parent.name())


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    job = BatchJob(**json.loads(Path(sys.argv[1]).read_text()))
    on_cluster = {} if job.master.startswith("local") else ON_CLUSTER
    spark = spark_session("batch job", Path(job.directory) / "spark", job.master, **on_cluster)
    register(spark)
    failed: list[str] = []

    def write(way: str) -> None:
        try:
            # A thread of its own does not know Spark's registry of formats until it knows the session.
            jvm = spark._jvm
            assert jvm is not None, "only Spark Connect has none"
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            if not job.master.startswith("local"):
                rows = job.rows_of_a_killed_executor(spark, way)
            else:
                rows = job.rows_at_the_second_try(spark, way) if way.endswith("_1") else job.rows(spark)
            job.write(rows, way)
        except Exception:
            logging.getLogger("onefold").exception(way)
            failed.append(way)

    threads = [threading.Thread(target=write, args=(way,), name=way) for way in job.ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
