"""A process with batch runs, there to be killed: `python -m harness.batch_job JOB.json` writes one run
in many ways at once.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onefold.sinks import PostgresSink
from onefold.spark import BatchOutcome, EpochWriter, register
from onefold.spark.session import spark_session

ROWS = 300
RUN = "night"


@dataclass(frozen=True)
class BatchJob:
    """What the process is told. Each way, `format_1` or `two_phase_1`, is a pipeline and a table of its own."""

    url: str
    directory: str
    ways: tuple[str, ...]

    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.range(0, ROWS, 1, 3).selectExpr("id", "id * 2 AS n")

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

        return self.rows(spark).mapInArrow(fail_once, "id long, n long")

    def write(self, df: DataFrame, way: str) -> BatchOutcome | None:
        kind, _, _ = way.rpartition("_")
        if kind == "format":
            options = {"url": self.url, "table": way, "pipeline": way, "run": RUN}
            df.write.format("onefold_postgres").options(**options).mode("append").save()
            return None
        with closing(EpochWriter(way, sinks=[PostgresSink(self.url, table=way, delivery=kind)])) as pipeline:
            return pipeline.write_batch(df, RUN)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    job = BatchJob(**json.loads(Path(sys.argv[1]).read_text()))
    spark = spark_session("batch job", Path(job.directory) / "spark", "local[4,2]")  # a task may fail once
    register(spark)
    failed: list[str] = []

    def write(way: str) -> None:
        try:
            # A thread of its own does not know Spark's registry of formats until it knows the session.
            jvm = spark._jvm
            assert jvm is not None, "only Spark Connect has none"
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
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
