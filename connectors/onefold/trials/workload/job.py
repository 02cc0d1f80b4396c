"""The pipeline's own process, which is there to be killed: `python -m onefold.trials.workload.job JOB.json`."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from onefold.core import TaskId
from onefold.core.protocol.epoch import Outcome
from onefold.spark import exit_codes, register
from onefold.spark.runtime.writers import run_writers
from onefold.spark.session import spark_session
from onefold.trials.workload.flow_job import flow_of
from onefold.trials.workload.unprotected import UnprotectedSink
from onefold.trials.workload.workload_settings import GATE, TABLE, Job

TRIGGER = {"availableNow": True}


class Outcomes:
    """Tells the parent, line by line, what became of each batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._previous_s = time.monotonic()
        self._warm = False

    def __call__(self, outcome: Outcome) -> None:
        record = outcome.record
        self._say(epoch=record.epoch, rows=record.rows, replayed=outcome.replayed)

    def unprotected(self, rows: int) -> None:
        self._say(epoch=0, rows=rows, replayed=False)

    def _say(self, **what: object) -> None:
        now_s = time.monotonic()
        told = {**what, "seconds": now_s - self._previous_s, "warm": self._warm, "at": time.time()}
        line = json.dumps(told)
        self._previous_s, self._warm = now_s, True
        with self._path.open("a") as file:
            file.write(line + "\n")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    job = Job.load(Path(sys.argv[1]))
    directory = Path(job.directory) / "spark"
    with exit_codes():
        spark = spark_session(
            f"onefold {job.pipeline}", directory, job.master, show_retries=job.continuous, **job.spark
        )
        if gate := os.environ.get(GATE):
            while not Path(gate).exists():
                time.sleep(0.02)
        run = _exactly_once if job.exactly_once else _at_least_once
        run(spark, job)


def _exactly_once(spark: SparkSession, job: Job) -> None:
    query = flow_of(job).start(
        spark,
        checkpoint=job.checkpoint,
        trigger=None if job.continuous else TRIGGER,
        store=job.store,
        on_outcome=Outcomes(job.outcomes),
    )
    with closing(query):
        query.await_termination()


def _at_least_once(spark: SparkSession, job: Job) -> None:
    """The same source, filter and COPY without the protocol, as most pipelines run."""
    register(spark)
    sink, outcomes = UnprotectedSink(job.postgres_url, TABLE), Outcomes(job.outcomes)
    committer = sink.recover(job.pipeline)

    def write(df: DataFrame, batch_id: int) -> None:
        task = TaskId(job.pipeline, 1, batch_id + 1, 0, uuid.uuid4())
        written = run_writers(df, [sink], task).committables
        outcomes.unprotected(sum(committable.rows for committable in written))

    df = spark.readStream.format("onefold_kafka").options(**job.source().options()).load().where("amount > 0")
    sink.open(job.pipeline, to_arrow_schema(df.schema, timezone="UTC")).close()
    committer.close()
    query = df.writeStream.foreachBatch(write).option("checkpointLocation", job.checkpoint).trigger(**TRIGGER).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
