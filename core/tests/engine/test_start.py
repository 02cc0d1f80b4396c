"""What the start of a flow imports: each of these modules would make every start, and every recovery, longer."""

import subprocess
import sys

FLOW = """
import sys
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

flow = Flow("orders")
source = KafkaSource("orders", bootstrap_servers="broker:9092", format="json", schema="id long, at timestamp")
flow.source(source, uid="orders").sink(PostgresSink("postgresql://db/shop", "orders", delivery="staged"))
graph = flow.graph()
import onefold.engine.driver.running
"""
DRIVER = "import onefold.engine.driver.opening\n"
FORK_SERVER = "onefold.engine.driver.running._warm(onefold.engine.driver.running.plan(graph))\n"
SHOW = "print(*sys.modules)"

# Neither who writes a flow nor its driver needs these: the command line's, Spark's, and those of other flows.
NEVER = (
    *("typer", "rich", "pydantic", "structlog", "fastapi", "prometheus_client", "psutil", "pyspark", "pandas"),
    *("fastavro", "authlib", "kafka", "thriftpy2", "pymysql", "rocksdict", "pyarrow.fs", "pyarrow.parquet"),
    *("sqlalchemy", "onefold.flow.explaining", "onefold.flow.drawing.svg"),
    *("onefold.sources.files", "onefold.sources.postgres", "onefold.sinks.sql", "onefold.sinks.hbase"),
)
OF_WORKERS = ("onefold.engine.logics", "onefold.engine.dataflow.subtask", "onefold.engine.workers.worker")
OF_STATE = ("onefold.engine.state.participant", "onefold.engine.state.storage", "onefold.engine.state.memory")
OF_THE_DRIVER = ("onefold.store.checkpoint_store", "onefold.core.protocol.epoch", "onefold.store.job.session")


def test_a_plain_flow_is_built_without_the_driver_s_modules_and_the_workers() -> None:
    assert _imported(FLOW, *NEVER, *OF_WORKERS, *OF_STATE, *OF_THE_DRIVER) == []


def test_its_driver_imports_nothing_of_workers_and_of_state() -> None:
    assert _imported(FLOW + DRIVER, *NEVER, *OF_WORKERS, *OF_STATE) == []


def test_the_fork_server_imports_what_workers_need_and_nothing_of_the_driver() -> None:
    assert _imported(FLOW + FORK_SERVER, *OF_THE_DRIVER, "pandas") == []
    assert {"onefold.engine.workers.worker", "onefold.engine.state.memory"} <= {
        *_imported(FLOW + FORK_SERVER, "onefold")
    }


def _imported(does: str, *modules: str) -> list[str]:
    """Those of these modules, and modules below them, that a process has imported which does this."""
    done = subprocess.run([sys.executable, "-c", does + SHOW], capture_output=True, check=True, text=True)
    return [each for each in done.stdout.split() if f"{each}.".startswith(tuple(f"{name}." for name in modules))]
