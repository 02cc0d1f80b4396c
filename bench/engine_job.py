"""`python -m bench.engine_job JSON`: one flow of `bench.engine`, on either runtime. It imports what a user's own job
would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

__all__ = ["Job"]

SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"


@dataclass(frozen=True)
class Job:
    """A flow from a topic into a table, in a process of its own."""

    servers: str
    url: str
    topic: str
    table: str
    checkpoint: str
    delivery: str
    workers: int
    rows_per_epoch: int | None = None
    goes_on: bool = False
    runtime: str = "engine"

    def run(self) -> None:
        flow = Flow(self.table)
        source = KafkaSource(
            self.topic,
            bootstrap_servers=self.servers,
            format="json",
            schema=SCHEMA,
            max_offsets_per_trigger=self.rows_per_epoch,
        )
        rows = flow.source(source if self.goes_on else source.bounded(), uid="rows")
        rows.sink(PostgresSink(self.url, self.table, delivery=self.delivery))
        if self.runtime == "engine":
            flow.run(checkpoint=self.checkpoint, workers=self.workers)
        else:
            from onefold.cli.spark_session import spark_session  # what the engine's own jobs do without

            spark = spark_session("onefold bench", Path(self.checkpoint), master=f"local[{self.workers}]")
            flow.start(spark, checkpoint=self.checkpoint).await_termination()

    def start(self) -> subprocess.Popen[bytes]:
        """With bytecode, which pip's install of a user's onefold has: to compile takes a fifth of the imports' time."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return subprocess.Popen([sys.executable, "-m", "bench.engine_job", json.dumps(asdict(self))], env=environment)


if __name__ == "__main__":
    Job(**json.loads(sys.argv[1])).run()
