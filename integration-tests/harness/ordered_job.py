"""A flow whose rows depend on the order of its records, in a process of its own: `python ordered_job.py JOB`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from onefold.core import Committable, Sink
from onefold.engine import Restart
from onefold.flow import Flow, StatefulProcessor
from onefold.sinks import HBaseSink, KafkaSink
from onefold.sinks.sink_writer import AttemptWriter
from onefold.sources import KafkaSource

__all__ = ["OrderedJob"]

LATE_S = 1.5


class Every(StatefulProcessor):
    """Numbers the records of each account, and gives every second one: which those are, their order says."""

    def init(self, handle: Any) -> None:
        self._last = handle.getValueState("last", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (number,) = self._last.get() or (0,)
        for row in rows:
            number += 1
            if number % 2:
                yield (row.id, key[0], number)
        self._last.update((number,))


@dataclass(frozen=True)
class OrderedJob:
    """`late` is the partition whose records come late. With `strikes` a worker is killed that has written its rows of
    the first epoch."""

    servers: str
    topic: str
    folder: str
    out: str
    hbase: str = ""  # its Thrift servers; without them it writes to the topic `out`
    workers: int = 2
    late: int = 0
    strikes: bool = False

    def run(self) -> None:
        source = KafkaSource(
            self.topic,
            bootstrap_servers=self.servers,
            format="json",
            schema="id long, account long",
            columns=["position"],
        )
        flow = Flow("ordered")
        records = flow.source(source.bounded(), uid="records")
        paced = records.map_batches(self._pace, schema=records.schema)
        every = paced.key_by("account").process(Every(), schema="id long, account long, number long", uid="every")
        every.sink(self._sink())
        if self.strikes:
            AttemptWriter.prepare = _struck(AttemptWriter.prepare)  # type: ignore[method-assign]
        flow.run(checkpoint=self.folder, workers=self.workers, restart=Restart(strategy="none"))

    def finish(self, **others: Any) -> subprocess.CompletedProcess[str]:
        """Run it in a process, with other settings."""
        job = json.dumps(asdict(replace(self, **others)))
        return subprocess.run([sys.executable, __file__, job], capture_output=True, text=True, timeout=240)

    def _pace(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and batch["kafka_partition"][0].as_py() == self.late:
            time.sleep(LATE_S)
        return batch

    def _sink(self) -> Sink:
        if self.hbase:
            return HBaseSink(self.hbase, self.out, row_key="id", family="f")
        return KafkaSink(self.out, bootstrap_servers=self.servers, delivery="keyed", id=("account", "number"))


def _struck(prepare: Any) -> Any:
    def prepared(writer: AttemptWriter) -> Committable | None:
        committable = prepare(writer)
        if committable is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    return prepared


if __name__ == "__main__":
    OrderedJob(**json.loads(sys.argv[1])).run()
