"""`python -m bench.compare.job JSON`: the flow that all contestants run: the records of a topic, each appended as a row
of one table, and a count by key, upserted into another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onefold.core.restart import Restart
from onefold.flow import Flow, count, sum_
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

__all__ = ["ACCOUNTS", "ROWS_DDL", "TOTALS_DDL", "WORKERS", "Job", "record"]

SCHEMA = "id long, part long, account long"
ROWS_DDL = "id bigint, part bigint, account bigint"
TOTALS_DDL = "account bigint PRIMARY KEY, n bigint, total bigint, onefold_epoch bigint"
ACCOUNTS = 1_000
WORKERS = 2
RESTART = Restart(strategy="fixed_delay", delay_s=0.01)


def record(number: int, partitions: int) -> tuple[bytes, int]:
    """The record of that number, and its partition: numbers grow in each."""
    part = number % partitions
    return b'{"id":%d,"part":%d,"account":%d}' % (number, part, number // partitions % ACCOUNTS), part


@dataclass(frozen=True)
class Job:
    """`settings` are those of `Flow.run`; they are None for the flow on Spark. `goes_on`: it does not end by itself."""

    servers: str
    url: str
    topic: str
    checkpoint: str
    settings: dict[str, Any] | None = field(default_factory=dict)
    goes_on: bool = False

    @property
    def rows_table(self) -> str:
        return f"{self.topic}_rows"

    @property
    def totals_table(self) -> str:
        return f"{self.topic}_totals"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.compare.job", json.dumps(asdict(self))]

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command)

    def flow(self) -> Flow:
        flow = Flow(self.topic)
        source = KafkaSource(self.topic, bootstrap_servers=self.servers, format="json", schema=SCHEMA)
        rows = flow.source(source if self.goes_on else source.bounded(), uid="rows")
        rows.sink(PostgresSink(self.url, self.rows_table, delivery="two_phase"))
        totals = rows.key_by("account").aggregate(uid="totals", n=count(), total=sum_("id"))
        totals.sink(PostgresSink(self.url, self.totals_table, mode="upsert", key="account", order="onefold_epoch"))
        return flow

    def run(self) -> None:
        flow = self.flow()
        if self.settings is not None:
            flow.run(checkpoint=self.checkpoint, workers=WORKERS, restart=RESTART, **self.settings)
            return
        from onefold.spark.session import spark_session  # what the engine's own jobs do without

        spark = spark_session("onefold compare", Path(self.checkpoint), master=f"local[{WORKERS}]")
        flow.start(spark, checkpoint=self.checkpoint).await_termination()


if __name__ == "__main__":
    Job(**json.loads(sys.argv[1])).run()
