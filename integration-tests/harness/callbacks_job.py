"""A session in which users start queries of their own before and after onefold is told of it, and what a stranger gets
at its callback server each time: `python callbacks_job.py FOLDER` prints one JSON line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.stranger import calls_of
from harness.support import wait_until
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from onefold.core import ConfigError
from onefold.sinks import SqlSink
from onefold.spark import EpochWriter, register
from onefold.spark.runtime.access import close_callbacks
from onefold.spark.session import spark_session

INTERPRETED: Any = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def port() -> int:
    gateway: Any = SparkContext._gateway
    return int(gateway._callback_server.port)


class Query:
    """A query of the user's own, of which every batch is counted."""

    def __init__(self, spark: SparkSession) -> None:
        self.batches = 0
        rate = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        self.query = rate.writeStream.foreachBatch(self.write).trigger(processingTime="1 second").start()

    def write(self, _df: DataFrame, _batch: int) -> None:
        self.batches += 1

    def goes_on(self) -> bool:
        before = self.batches
        wait_until(lambda: self.batches > before or not self.query.isActive, "a batch")
        return self.query.isActive


def code_of(act: Callable[[], object]) -> str:
    try:
        act()
    except ConfigError as error:
        return error.code
    return ""


def main() -> None:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    folder = Path(sys.argv[1])
    spark = spark_session("callbacks", folder / "spark", "local[2]", **INTERPRETED)
    files = spark.readStream.schema("id long").json(str(folder / "files"))
    told: dict[str, Any] = {}

    def wrapped(trust_machine: bool) -> str:
        """How a query ends that calls the epoch writer in a function of its own."""
        name = f"trusting_{trust_machine}".lower()
        sink = SqlSink(f"sqlite:///{folder}/{name}.db", "rows")
        epochs = EpochWriter(name, [sink], patience_s=5, trust_machine=trust_machine)

        def write(df: DataFrame, batch: int) -> None:
            epochs(df, batch)

        writer = files.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/{name}")
        return code_of(lambda: epochs.await_termination(writer.trigger(availableNow=True).start(), 300))

    before = Query(spark)
    assert before.goes_on()
    told["a query that was there before"] = len(calls_of(port())) > 0
    told["in a batch"], told["in a batch of who trusts the machine"] = wrapped(False), wrapped(True)
    told["beside it"] = code_of(lambda: close_callbacks(spark))
    assert before.goes_on()
    before.query.stop()
    register(spark)
    first = Query(spark)
    assert first.goes_on()
    told["closed"] = calls_of(port())
    register(spark)
    second = Query(spark)
    assert second.goes_on() and first.goes_on()
    told["closed twice"], told["in a batch then"] = calls_of(port()), wrapped(False)
    first.query.stop()
    second.query.stop()
    spark.stop()
    spark = spark_session("callbacks", folder / "spark", "local[2]", **INTERPRETED)
    register(spark)
    third = Query(spark)
    assert third.goes_on()
    told["in the next session"] = calls_of(port())
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
