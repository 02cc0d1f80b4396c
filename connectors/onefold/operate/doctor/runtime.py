"""What a pipeline runs on, as it is here: Python, Java, Spark; and which rows its sinks get there."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import version

import pyarrow as pa
from pyspark.sql import SparkSession

from onefold.clients.files import FileSystem, HadoopFiles, LocalFiles, is_local
from onefold.core import OnefoldError, Retriable
from onefold.core.findings import THIS_MACHINE, Finding, Level
from onefold.operate.doctor.examination import asked, exposed
from onefold.pipeline import Pipeline
from onefold.spark.flows.spark_operator import checked_operator
from onefold.spark.runtime.access import exposure_of
from onefold.spark.runtime.checkpoint import check_writable

__all__ = ["examine_runtime"]


def examine_runtime(pipeline: Pipeline) -> tuple[list[Finding], Mapping[str, pa.Schema] | None]:
    """Starts Spark as the pipeline does. The schemas are the rows' of each sink, None where only a start finds them."""
    found: list[Finding] = []
    runtime = pipeline.spark
    try:
        with runtime.session_for("onefold doctor", "doctor") as spark:
            java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]  # PySpark: "JVMView | None"
            runs = f"Spark {spark.version} on {runtime.master}, Java {java}"
            says = f"{runs}, Python {platform.python_version()}, onefold {version('onefold')}"
            found.append(Finding(Level.FINE, says))
            refused = Level.PROBLEM if pipeline.require_tls else Level.CAUTION
            found += exposed(exposure_of(spark), refused)
            found += asked(lambda: _checkpoint(spark, pipeline.checkpoint))
            if pipeline.flow.is_settled:
                checked_operator(spark, pipeline.graph)
                return found, pipeline.graph.schemas()
            says = "the source's schema is found by the first start, and with it the sinks' rows"
            found.append(Finding(Level.UNCHECKED, says))
    except OnefoldError as error:
        found.append(Finding.of(error))
    return found, None


def _checkpoint(spark: SparkSession, root: str) -> Iterator[Finding]:
    check_writable(root)
    files: FileSystem = LocalFiles() if is_local(root) else HadoopFiles(spark)  # as the query reaches it
    try:
        is_there = files.exists(root)
    except Retriable as error:
        raise Retriable("checkpoint-unreadable", error.message) from error
    if is_there:
        yield Finding(Level.FINE, f"the checkpoint {root} is there")
    else:
        command, where = (
            ("mkdir", THIS_MACHINE) if is_local(root) else ("hadoop fs -mkdir", "the checkpoint's filesystem")
        )
        says = f"the checkpoint {root} is made by the first start"
        yield Finding.making(says, where, [f"{command} -p {shlex.quote(root)}"])
