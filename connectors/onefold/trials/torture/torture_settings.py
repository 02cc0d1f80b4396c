"""What a torture runs with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onefold.trials.workload.workload_settings import INTO_HBASE, INTO_KAFKA

PIPELINE = "torture"
CLUSTER = "cluster"
CONTAINERS = "containers"
ENGINE = "engine"
BOTH = "both"
HEARTBEAT_LOST_S = 6.0  # an executor that is silent for longer is given up by Spark

_SPARK = {
    "spark.driver.memory": "1g",
    # So that a reader of the log sees the task and stage retries.
    "spark.sql.adaptive.enabled": "true",
}
_ON_CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",  # half of what the cluster has: a zombie keeps its executors, and its successor needs some
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": str(int(HEARTBEAT_LOST_S * 1000)),
    "spark.network.timeoutInterval": "1s",
    "spark.executor.extraJavaOptions": "-XX:-UsePerfData",
}


@dataclass(frozen=True, slots=True)
class TortureSettings:
    """The options of `onefold torture`. It ends after `faults` faults, or after `minutes` if they are given.

    `deliveries` are the sinks', at most one for each system: the Postgres sink's (two_phase, staged, direct), the Kafka
    sink's mode (transactional, keyed), the HBase sink's (row_key, rolling, incremental). `servers`: local ones, or
    containers, which are cut off, too. With the `runtime` engine the job is a flow on the embedded engine, whose state
    the backend `state` keeps, and `mechanism` and `alignment` protect; then `master` says nothing. With the runtime
    `both` it moves between them by savepoints.
    `html` is the report's file, by default one in the directory.
    """

    faults: int = 60
    minutes: float | None = None
    seed: int = 1
    deliveries: tuple[str, ...] = ("two_phase",)
    master: str = "local"
    directory: Path = Path(".onefold/torture")
    mode: str = "append"
    bad_rows: bool = True
    dead_letters: str = "table"
    faults_per_round: int = 10
    orders_per_s: int = 200
    servers: str = "local"
    runtime: str = "spark"
    state: str = "memory"
    mechanism: str = "barriers"
    alignment: str = "aligned"
    html: Path | None = None

    @property
    def on_cluster(self) -> bool:
        return self.master == CLUSTER

    @property
    def on_engine(self) -> bool:
        return self.runtime == ENGINE

    @property
    def moves(self) -> bool:
        return self.runtime == BOTH

    @property
    def struck(self) -> tuple[str, ...]:
        """The deliveries of all sinks that faults may concern: those of the orders, and of what comes of windows."""
        has_tables = self.has_windows or self.has_hops
        return tuple(dict.fromkeys((*self.deliveries, "two_phase"))) if has_tables else self.deliveries

    @property
    def has_windows(self) -> bool:
        """On Spark only into Postgres: there the others have no more than their own system. Hops know no event time."""
        if self.has_hops:
            return False
        return self.on_engine or {*self.deliveries}.isdisjoint((*INTO_KAFKA, *INTO_HBASE))

    @property
    def has_hops(self) -> bool:
        """Then it has totals beside the orders."""
        return self.mechanism == "transaction"

    @property
    def keeps_workers(self) -> bool:
        """Neither hops nor rows of windows in flight can be shared out anew."""
        return self.has_hops or self.alignment == "unaligned"

    @property
    def in_containers(self) -> bool:
        return self.servers == CONTAINERS

    @property
    def needs_postgres(self) -> bool:
        """For the rows, those of windows, or the checkpoint store; beside a local master that of any other sink is a
        file."""
        return self.on_cluster or not {*self.struck} <= {*INTO_KAFKA, *INTO_HBASE}

    @property
    def needs_hbase(self) -> bool:
        return not {*self.deliveries}.isdisjoint(INTO_HBASE)


def spark_settings(on_cluster: bool) -> Mapping[str, str]:
    return {**_SPARK, **(_ON_CLUSTER if on_cluster else {})}
