"""A Spark session for commands that bring their own: quiet, on this machine unless told otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from onefold.local import spark_environment

__all__ = ["session_of_ones_own", "spark_session"]

_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""
_RETRIES = """\
logger.retries.name = org.apache.spark.scheduler
logger.retries.level = warn
"""


def spark_session(
    name: str, directory: Path, master: str = "local[*]", *, show_retries: bool = False, **settings: str
) -> SparkSession:
    """A session that finds a Java, or brings one. Its scratch files and log settings go into `directory`.

    `show_retries` logs lost tasks, stages and executors too.
    """
    os.environ.update(spark_environment())
    scratch = directory / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(_QUIET + (_RETRIES if show_retries else ""))
    builder = (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config(
            "spark.driver.extraJavaOptions",  # a JVM that is killed leaves its temporary files: here, not in /tmp
            f"-Dlog4j2.configurationFile=file:{log_settings} -Djava.io.tmpdir={scratch} -XX:-UsePerfData",
        )
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """What a JVM that is started in here says goes to the file, as long as it lives; where that fails, here as well."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    except BaseException:
        os.write(kept, log.read_bytes())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def session_of_ones_own(name: str, directory: Path) -> Iterator[SparkSession]:
    """A session for one piece of work, stopped after it; where the process has one already, that one, which stays.

    Its JVM writes to `directory`/spark.log: what Spark says of its own start is noise to whoever runs a command.
    """
    if running := SparkSession.getActiveSession():
        yield running
        return
    with _standard_error_to(directory / "spark.log"):
        spark = spark_session(name, directory)
    try:
        yield spark
    finally:
        spark.stop()
