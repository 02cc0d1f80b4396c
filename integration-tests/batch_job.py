"""A process with batch runs, which is there to be killed: `python -m batch_job JOB.json`.

It writes in three ways at once: `write_batch` with each delivery, and `df.write`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onefold.connectors.spark_session import spark_session
from onefold.sinks import PostgresSink
from onefold.spark import Pipeline, register

WAYS = ("format", "two_phase", "staged")
ROWS = 300  # in each run


@dataclass(frozen=True)
class BatchJob:
    """What the process is told: which runs to write, one after the other, in each of the ways."""

    url: str
    directory: str
    runs: tuple[int, ...]

    def rows(self, spark: SparkSession, run: int, way: str) -> DataFrame:
        """The run's numbers in three tasks. The first attempt of the second one ever fails half way."""
        flag = Path(self.directory) / f"{way}-{run}-failed-once"

        def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                if batch.column("id")[0].as_py() % ROWS == ROWS // 3 and not flag.exists():
                    flag.touch()
                    raise RuntimeError("this task fails once")
                yield batch.slice(half)

        df = spark.range(run * ROWS, (run + 1) * ROWS, 1, 3).selectExpr("id", "id * 2 AS n")
        return df.mapInArrow(fail_once, "id long, n long")

    def write(self, spark: SparkSession, run: int, way: str) -> None:
        df, name = self.rows(spark, run, way), f"run {run}"
        if way == "format":
            options = {"url": self.url, "table": way, "pipeline": way, "run": name}
            df.write.format("onefold_postgres").options(**options).mode("append").save()
            self._say(way=way, run=name)
            return
        pipeline = Pipeline(way, sinks=[PostgresSink(self.url, table=way, delivery=way)])
        self._say(way=way, **asdict(pipeline.write_batch(df, name)))
        pipeline.close()

    @property
    def outcomes(self) -> Path:
        return Path(self.directory) / "outcomes.jsonl"

    def _say(self, **what: object) -> None:
        with self.outcomes.open("a") as file:
            file.write(json.dumps(what) + "\n")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    job = BatchJob(**json.loads(Path(sys.argv[1]).read_text()))
    spark = spark_session("batch job", Path(job.directory) / "spark", "local[3,2]")  # a task may fail once
    register(spark)
    failed: list[str] = []

    def write_all(way: str) -> None:
        try:
            for run in job.runs:
                job.write(spark, run, way)
        except Exception:
            logging.getLogger("onefold").exception(way)
            failed.append(way)

    threads = [threading.Thread(target=write_all, args=(way,)) for way in WAYS[1:]]
    for thread in threads:
        thread.start()
    write_all(WAYS[0])  # in this thread, which is the one that Spark's registry of formats knows
    for thread in threads:
        thread.join()
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
