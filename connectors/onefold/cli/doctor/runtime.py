"""What a pipeline runs on, as it is here: Python, Java, Spark; and which rows its sinks get there."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pyarrow as pa

from onefold.cli.spark_session import session_of_ones_own, temporary_folder
from onefold.core import OnefoldError
from onefold.core.findings import Finding, Level
from onefold.definition import Definition

__all__ = ["examine_runtime"]


def examine_runtime(definition: Definition) -> tuple[list[Finding], pa.Schema | None]:
    """Starts Spark as the pipeline does. The schema is the rows' of its sinks, None where only a start finds it."""
    found: list[Finding] = []
    try:
        with (
            temporary_folder("onefold-doctor-") as scratch,
            session_of_ones_own("onefold doctor", scratch, definition.spark) as spark,
        ):
            java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
            runs = f"Spark {spark.version} on {definition.spark.master}, Java {java}"
            says = f"{runs}, Python {platform.python_version()}, onefold {version('onefold')}"
            found.append(Finding(Level.FINE, says))
            if definition.source.has_schema:
                return found, definition.schema(spark)
            says = f"the {definition.source.format} schema is found by the first start, and with it the sinks' rows"
            found.append(Finding(Level.UNCHECKED, says))
    except OnefoldError as error:
        found.append(Finding.of(error))
    return found, None
