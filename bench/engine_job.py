"""`python -m bench.engine_job JSON`: one flow of `bench.engine`, on either runtime. It imports what a user's own job
would. At its end it prints, as JSON, the CPU seconds of this process and of its workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onefold.core import Sink
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

__all__ = ["SCHEMA", "Job", "Ran"]

SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"


@dataclass(frozen=True)
class Ran:
    """Seconds from a job's start to its end, and its CPU seconds: the driver's, and those of its workers and of the
    process that forks them."""

    wall_s: float
    driver_s: float
    workers_s: float


@dataclass(frozen=True)
class Job:
    """A flow from a topic into a table, in a process of its own.

    `delivery` is `PostgresSink`'s, or what is left out of it: `unprotected` (the protocol), `encoded` (and sending),
    `parsed` (and encoding), `fetched` (and parsing). `store` is the checkpoint store, None for the default. Each epoch
    of the engine becomes a line of the file `epochs`: its number, when it ended, and seconds by step.
    """

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
    store: str | None = None
    epochs: str | None = None

    def run(self) -> None:
        flow = Flow(self.table)
        source = self._source()
        rows = flow.source(source if self.goes_on else source.bounded(), uid="rows")
        rows.sink(self._sink())
        if self.runtime == "engine":
            noting = {} if self.epochs is None else _noting(self.epochs)
            flow.run(checkpoint=self.checkpoint, workers=self.workers, store=self.store, **noting)
        else:
            from onefold.spark.session import spark_session  # what the engine's own jobs do without

            spark = spark_session("onefold bench", Path(self.checkpoint), master=f"local[{self.workers}]")
            flow.start(spark, checkpoint=self.checkpoint).await_termination()

    def _source(self) -> KafkaSource:
        kind = KafkaSource
        if self.delivery == "fetched":
            from bench import engine_parts  # as below

            kind = engine_parts.FetchingSource
        return kind(
            self.topic,
            bootstrap_servers=self.servers,
            format="json",
            schema=SCHEMA,
            max_offsets_per_trigger=self.rows_per_epoch,
        )

    def _sink(self) -> Sink:
        if self.delivery in ("two_phase", "staged", "direct"):
            return PostgresSink(self.url, self.table, delivery=self.delivery)
        from bench.engine_parts import DroppingSink, EncodingSink, OnlyCopyingSink  # what a user's own job does without

        match self.delivery:
            case "unprotected":
                return OnlyCopyingSink(self.url, self.table)
            case "encoded":
                return EncodingSink(self.url, self.table)
            case _:
                return DroppingSink()

    def start(self, stdout: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "bench.engine_job", json.dumps(asdict(self))], stdout=stdout)

    def to_its_end(self) -> Ran:
        """Raises RuntimeError where it fails."""
        began_s = time.monotonic()
        process = self.start(subprocess.PIPE)
        told, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"the flow ended with {process.returncode}")
        return Ran(time.monotonic() - began_s, *json.loads(told))


def _noting(path: str) -> dict[str, Callable[[Any], None]]:
    """The settings of a run that write each epoch's line."""
    opened: list[Any] = []
    file = Path(path).open("w", buffering=1)  # noqa: SIM115  # as long as this process

    def note(outcome: Any) -> None:
        steps = opened[0].steps.known()
        file.write(json.dumps({"epoch": outcome.record.epoch, "ended_s": time.monotonic(), "steps": steps}) + "\n")

    return {"on_opened": opened.append, "on_outcome": note}


if __name__ == "__main__":
    Job(**json.loads(sys.argv[1])).run()
    used = os.times()
    print(json.dumps([used.user + used.system, used.children_user + used.children_system]))
