"""What a host imports before its pipeline of the engine runs: each of these modules would make its start longer."""

import subprocess
import sys
from pathlib import Path

from onefold.daemon.hosting.host_process import modules_of
from onefold.pipeline import read

FILE = """\
name = "orders"
checkpoint = "{place}/orders"
runtime = "engine"
[[sources]]
kind = "kafka"
topics = "orders"
bootstrap_servers = "broker:9092"
format = "json"
schema = "id long, at timestamp"
[[sinks]]
kind = "postgres"
url = "postgresql://db/shop"
table = "orders"
delivery = "staged"
"""
HOST = """
import sys
import onefold.daemon.hosting.process
from onefold.pipeline import read
graph = read(sys.argv[1]).graph
import onefold.engine.driver.running, onefold.engine.driver.opening
print(*sys.modules)
"""
FORKED = """
import sys
import onefold.daemon.hosting.process
from onefold.daemon.hosting.host_process import import_all
import_all(sys.argv[2:])
known = {*sys.modules}
from onefold.pipeline import read
graph = read(sys.argv[1]).graph
import onefold.engine.driver.running, onefold.engine.driver.opening
print(*{*sys.modules} - known)
"""
# The command line's and the daemon's own, Spark's, those of other sources, sinks and stores, and file systems.
NEVER = (
    *("typer", "rich", "structlog", "fastapi", "uvicorn", "prometheus_client", "psutil", "pyspark", "py4j", "pandas"),
    *("sqlalchemy", "sqlglot", "pymysql", "thriftpy2", "rocksdict", "fastavro", "authlib", "adbc_driver_manager"),
    *("pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset", "onefold.cli", "onefold.operate", "onefold.daemon.api"),
    *("onefold.spark.session", "onefold.spark.flows", "onefold.sources.files", "onefold.sinks.sql"),
)


def test_a_host_of_the_engine_from_kafka_to_postgres_imports_nothing_of_other_runtimes_and_ends(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(FILE.format(place=tmp_path))
    command = [sys.executable, "-c", HOST, str(tmp_path / "orders.toml")]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    found = done.stdout.split()
    assert {"onefold.sources.kafka", "onefold.sinks.postgres"} <= {*found}
    assert [each for each in found if f"{each}.".startswith(tuple(f"{name}." for name in NEVER))] == []


def test_a_driver_finds_what_its_pipeline_needs_imported_by_its_host(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(FILE.format(place=tmp_path))
    modules = modules_of([read(str(tmp_path / "orders.toml"))])
    command = [sys.executable, "-c", FORKED, str(tmp_path / "orders.toml"), *modules]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} <= {"encodings", "pydantic"}
