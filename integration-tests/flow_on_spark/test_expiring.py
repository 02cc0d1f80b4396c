"""State that expires, on Spark as on the engine: the same rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.ending import run_until
from pyspark.sql import SparkSession

from onefold.flow import Flow, StatefulProcessor, Stream, Ttl, last, monotonic, sum_
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import PostgresSink
from onefold.sources import FileSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TTL_S = 10


def summed(rows: Stream, ttl: Ttl) -> Stream:
    return rows.key_by("k").aggregate(uid="sums", ttl=ttl, at=last("at"), total=sum_("n"))


def processed(rows: Stream, ttl: Ttl) -> Stream:
    class Sums(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total long", ttl=ttl)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
            del timerValues
            for row in rows:
                total = row.n + (self.total.get() or (0,))[0]
                self.total.update((total,))
                yield key[0], row.at, total

    return rows.key_by("k").process(Sums(), uid="sums", schema="k string, at timestamp, total long")


class Ledger:
    """Rows in files, an epoch each, into a table of the runtime."""

    def __init__(self, root: Path, url: str, build: Callable[[Stream, Ttl], Stream], ttl: Ttl, on: Engine | Spark):
        self.root, self.url, self.name = root, url, type(on).__name__.lower()
        (root / "in").mkdir(exist_ok=True)
        self.files = 0
        flow = Flow(self.name, max_parallelism=4)
        schema = "k string, at timestamp, n long"
        source = FileSource(str(root / "in"), format="json", schema=schema, settle_s=0.0, max_files_per_trigger=1)
        rows = flow.source(source, uid="in", watermarks=monotonic("at", idle=None))
        sink = PostgresSink(url, self.name, mode="upsert", key="k", order=("onefold_epoch", "at"))
        build(rows, ttl).sink(sink)
        self.pipeline = Pipeline(flow, checkpoint=str(root / self.name), runtime=on)

    def totals(self) -> list[tuple[str, int, int]]:
        query = f"SELECT k, extract(second FROM at)::int, total FROM {self.name} ORDER BY k"
        with psycopg.connect(self.url) as db, suppress(psycopg.errors.UndefinedTable):
            return db.execute(query.encode()).fetchall()
        return []

    def come_to(self, due: Mapping[str, tuple[int, int]]) -> None:
        """The table has these seconds and totals by key."""
        run_until(self.pipeline, lambda: self.totals() == [(key, *of) for key, of in sorted(due.items())])


def put(root: Path, number: int, at_s: int, *keys: str) -> None:
    rows = [json.dumps({"k": key, "at": f"2026-01-01T00:00:{at_s:02}Z", "n": 1}) + "\n" for key in keys]
    (root / f"in/{number}.json").write_text("".join(rows))


@pytest.mark.parametrize("build", [summed, processed])
@pytest.mark.parametrize("clock", ["event", "processing"])
def test_sums_begin_anew_once_they_have_expired(
    tmp_path: Path, postgres_url: str, spark: SparkSession, build: Any, clock: Any
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    ttl = Ttl(f"{TTL_S} seconds", clock=clock)
    both = [Ledger(tmp_path, postgres_url, build, ttl, on) for on in (Engine(), Spark(session=spark))]

    def come_to(number: int, at_s: int, **due: tuple[int, int]) -> None:
        put(tmp_path, number, at_s, *(key for key, (second, _) in due.items() if second == at_s))
        for each in both:
            each.come_to(due)

    came_s = time.monotonic()
    come_to(0, 0, a=(0, 1), b=(0, 1))
    come_to(1, 30, a=(0, 1), b=(0, 1), c=(30, 1))
    if clock == "processing":
        time.sleep(max(0.0, came_s + 2 * TTL_S - time.monotonic()))
    come_to(2, 31, a=(31, 1), b=(31, 1), c=(30, 1))
    if clock == "event":  # by the machine's clock it may have expired again
        come_to(3, 32, a=(32, 2), b=(31, 1), c=(30, 1))
