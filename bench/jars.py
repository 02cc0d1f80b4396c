"""Spark's own Kafka connector, its Avro and a JDBC driver: resolved like Kafka's jars, and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from onefold.local import LocalServerError, find_java
from onefold.local.artifacts import ivy_jar, network_options
from onefold.local.cache import cache_directory

__all__ = ["NotAvailable", "spark_avro_jar", "spark_jars"]

# Named one by one, without what they name in turn: Spark brings the rest, and the 4.0.0 of the token provider (which
# only delegation tokens need) is a version that every mirror has.
_MODULES = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
    ("org.postgresql", "postgresql", "42.7.7"),
)
_AVRO = (("org.apache.spark", "spark-avro_2.13", "4.1.1"),)  # no mirror has a newer one, and it runs on Spark 4.2
_RESOLVE_S_MAX = 300

_Modules = tuple[tuple[str, str, str], ...]


class NotAvailable(Exception):
    """A contestant cannot take part, for this reason; the others go on."""


def spark_jars() -> list[Path]:
    """Spark's Kafka connector and the JDBC driver, downloaded if the cache lacks them. Raises `NotAvailable`."""
    return _jars("bench-jars", _MODULES)


def spark_avro_jar() -> list[Path]:
    """Spark's from_avro. Raises `NotAvailable`."""
    return _jars("bench-avro-jars", _AVRO)


def _jars(place: str, modules: _Modules) -> list[Path]:
    jars = cache_directory() / place
    wanted = [jars / f"{name}-{revision}.jar" for _, name, revision in modules]
    if all(jar.exists() for jar in wanted):
        return wanted
    try:
        jars.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", suffix=".part", dir=jars.parent) as part:
            _resolve(Path(part), modules)
            shutil.rmtree(jars, ignore_errors=True)
            Path(part, "jars").replace(jars)
    except (OSError, subprocess.TimeoutExpired, LocalServerError) as error:
        raise NotAvailable(f"its jars could not be resolved: {error}") from error
    if missing := [jar.name for jar in wanted if not jar.exists()]:
        raise NotAvailable(f"its jars could not be resolved: {', '.join(missing)} is missing in {jars}")
    return wanted


def _resolve(part: Path, modules: _Modules) -> None:
    description = part / "ivy.xml"
    dependencies = "".join(
        f'<dependency org="{org}" name="{name}" rev="{revision}" conf="default->default" transitive="false"/>'
        for org, name, revision in modules
    )
    description.write_text(
        '<ivy-module version="2.0"><info organisation="onefold" module="bench"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    java = find_java()
    command = [str(java.path), *network_options(java), "-jar", str(ivy_jar()), "-ivy", str(description)]
    if settings := os.environ.get("ONEFOLD_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += ["-confs", "default", "-cache", str(part / "ivy")]
    command += ["-retrieve", str(part / "jars" / "[artifact]-[revision].[ext]")]
    log = cache_directory() / "bench-ivy.log"
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=_RESOLVE_S_MAX, check=False)
    if code.returncode != 0:
        raise NotAvailable(f"its jars could not be resolved: see {log}")
