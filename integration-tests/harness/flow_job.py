"""A flow in a process of its own, for tests that kill it: `python flow_job.py job.json`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from onefold.core import Sink
from onefold.core.source import Source
from onefold.flow import BroadcastProcessor, Flow, StatefulProcessor, count, sum_
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink
from onefold.sources import KafkaSource

__all__ = ["FlowJob", "FlowProcess", "Numbering", "Ruling"]

WAIT_S = 240.0  # on a machine that has much else to do


class Numbering(StatefulProcessor):
    """Numbers the records of each account."""

    def init(self, handle: Any) -> None:
        self._last = handle.getValueState("last", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (number,) = self._last.get() or (0,)
        for row in rows:
            number += 1
            yield (row.id, key[0], number)
        self._last.update((number,))


class Ruling(BroadcastProcessor):
    """Multiplies the numbers of each account by its factor, which is broadcast."""

    def init(self, handle: Any) -> None:
        self._factors = handle.getBroadcastState("factors", "account long", "factor long")

    def handleBroadcastRows(self, rows: Iterator[Any], timerValues: Any) -> None:
        del timerValues
        for row in rows:
            self._factors.updateValue((row.account,), (row.factor,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (factor,) = self._factors.getValue(key)
        for row in rows:
            yield (row.id, key[0], row.n * factor)


@dataclass(frozen=True)
class FlowJob:
    """`kind` is "rows", which are written as they are, "numbered", by a processor, "totals", by an aggregate, "union",
    rows of the topic `other` too, "ruled", by the factors of that, or "letters", with bad records in a table of theirs.
    """

    servers: str
    topic: str
    url: str
    checkpoint: str
    kind: str = "rows"
    delivery: str = "two_phase"  # of Postgres; or "kafka", "hbase", "rolling", into the topic or table `out`
    workers: int = 1
    at_most: int = 300
    state: str = "memory"
    out: str = ""
    hbase: str = ""  # its Thrift servers
    other: str = ""
    goes_on: bool = False
    patience_s: float = 120.0

    def flow(self) -> Flow:
        flow = Flow("job")
        has_letters = self.kind == "letters"
        letters = PostgresSink(self.url, table="letters") if has_letters else None
        source = self._source(self.topic, on_error="dead_letter" if has_letters else "fail")
        records = flow.source(source, uid="records", dead_letters=letters)
        match self.kind:
            case "rows" | "letters":
                records.sink(self._sink())
            case "numbered":
                keyed = records.key_by("account")
                keyed.process(Numbering(), schema="id long, account long, number long", uid="numbers").sink(
                    self._sink()
                )
            case "totals":
                totals = records.key_by("account").aggregate(uid="totals", total=sum_("n"), records=count())
                totals.sink(self._sink(mode="upsert", key="account", order="onefold_epoch"))
            case "union":
                records.union(flow.source(self._source(self.other), uid="others")).sink(self._sink())
            case "ruled":
                rules = flow.source(self._source(self.other, schema="account long, factor long"), uid="rules")
                ruled = records.key_by("account").connect(rules.broadcast())
                ruled.process(Ruling(), schema="id long, account long, n long", uid="ruled").sink(self._sink())
        return flow

    def run(self) -> Any:
        return self.flow().run(
            checkpoint=self.checkpoint, workers=self.workers, state=self.state, patience_s=self.patience_s
        )

    def _source(self, topic: str, schema: str = "id long, account long, n long", on_error: str = "fail") -> Source:
        source = KafkaSource(
            topic,
            bootstrap_servers=self.servers,
            format="json",
            schema=schema,
            max_offsets_per_trigger=self.at_most,
            on_error=on_error,
        )
        return source if self.goes_on else source.bounded()

    def _sink(self, **more: Any) -> Sink:
        if self.delivery == "kafka":
            return KafkaSink(self.out, bootstrap_servers=self.servers)
        if self.delivery == "hbase":
            return HBaseSink(self.hbase, self.out, row_key="id", family="f")
        if self.delivery == "rolling":
            merge = {"n": "sum", "id": "max"}
            return HBaseSink(self.hbase, self.out, row_key="account", family="f", mode="rolling", merge=merge)
        return PostgresSink(self.url, table="rows", delivery="staged" if more else self.delivery, **more)


class FlowProcess:
    """A job's process. `failpoint` holds it, or its workers, at a named place."""

    def __init__(self, job: FlowJob, directory: Path, failpoint: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.held_at = directory / "held"
        self.held_at.mkdir(exist_ok=True)
        for path in self.held_at.iterdir():
            path.unlink()
        file, self.log = directory / "job.json", directory / "job.log"
        file.write_text(json.dumps(asdict(job)))
        environment = {"ONEFOLD_FAILPOINT": failpoint, "ONEFOLD_FAILPOINT_DIR": str(self.held_at)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(file)], stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def held(self, count: int = 1) -> list[int]:
        """Wait until so many processes are held; their ids."""
        until_s = time.monotonic() + WAIT_S
        while len(found := [int(path.name.split(".")[1]) for path in self.held_at.glob("*.*")]) < count:
            if time.monotonic() > until_s or self.process.poll() is not None:
                self.kill()
                raise AssertionError(f"not held: {self.log.read_text()[-3000:]}")
            time.sleep(0.01)
        return found

    def release(self) -> None:
        (self.held_at / "released").touch()

    def workers(self) -> list[psutil.Process]:
        """Its child processes: the one that forks, and those that it forked."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait(self) -> int:
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    FlowJob(**json.loads(Path(sys.argv[1]).read_text())).run()
