"""The process of a flow on the embedded engine, which is there to be killed:
`python -m onefold.trials.workload.flow_job JOB.json`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from onefold.core import OnefoldError
from onefold.flow import Flow, Session, StatefulProcessor, Stream, Tumbling, bounded, count, sum_
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.trials.workload.workload_settings import LATE, PAIRS, SECONDS, SESSIONS, TABLE, WINDOWS, Job

BUCKETS = 64  # a power of two
WINDOW_S, GAP_MS = 1, 100
_BUCKET = pc.bit_wise_and(pc.field("account"), BUCKETS - 1)
DISORDER_MS = 200  # of the orders' times, by what the source is told
# What is taken from an order's time before it goes into its window, by an amount that it is below: the first makes it
# late, the second lets it come within the lateness, and the result once more.
AGES = {Decimal(20): timedelta(seconds=4), Decimal(60): timedelta(seconds=1)}

PAIRED_BELOW = Decimal(60)  # the amounts that are small

log = logging.getLogger("onefold")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    job = Job.load(Path(sys.argv[1]))
    try:
        flow_of(job).run(checkpoint=job.checkpoint, workers=job.workers, store=job.store, **protection_of(job))
    except OnefoldError as error:
        log.exception("the flow ends")
        return error.exit_code
    return 0


class Seconds(StatefulProcessor):
    """How many orders a bucket has in each second, by timers of event time."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._counts = handle.getMapState("counts", "end_s long", "orders long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del key, timerValues
        for row in rows:
            end_s = int(row.at.timestamp()) + 1
            before = self._counts.getValue((end_s,))
            if before is None:
                self._handle.registerTimer(end_s * 1000)
            self._counts.updateValue((end_s,), (before[0] + 1 if before else 1,))
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:  # noqa: N802, N803
        del timerValues
        end_s = expiredTimerInfo.getExpiryTimeInMs() // 1000
        yield key[0], end_s, *self._counts.getValue((end_s,))
        self._counts.removeKey((end_s,))


def protection_of(job: Job) -> dict[str, Any]:
    """The engine's settings by which the flow outlives a crash."""
    return {"state": job.state, "mechanism": job.mechanism, "alignment": job.alignment}


def pipeline_of(job: Job) -> Pipeline:
    """The same, as commands take it."""
    runtime = (
        Engine(workers=job.workers, **protection_of(job)) if job.on_engine else Spark(job.master, settings=job.spark)
    )
    return Pipeline(flow_of(job), checkpoint=job.checkpoint, store=job.store, runtime=runtime)


def flow_of(job: Job) -> Flow:
    """The orders into each sink, without refunds; and with windows what the orders of each account come to, and those
    of each bucket of accounts by time, and with which others each small one is, of those whose account the table would
    take."""
    flow = Flow(job.pipeline, max_parallelism=16)  # on Spark each batch visits all of them
    idle = "1 minute" if job.on_engine else None  # for silence Spark makes batches without end, so that no run rests
    watermarks = bounded("at", f"{DISORDER_MS} milliseconds", idle=idle) if job.windows else None
    source = flow.source(job.source(), uid="orders", dead_letters=job.letters(), watermarks=watermarks)
    orders = source.filter(pc.field("amount") > Decimal(0))
    rows = orders
    if job.cells_columns is not None:
        rows = orders.select(**{name: pc.field(column) for name, column in job.cells_columns.items()})
    for sink in job.sinks():
        # Appended rows go through an exchange, too. Other sinks have rows by key, or in the order in which they come.
        is_appended = sink.name == TABLE and job.mode == "append" and job.shuffled
        (rows.rebalance() if is_appended else rows).sink(sink)
    if not (job.windows or job.only_totals):
        return flow
    known = orders.filter(pc.field("account") > 0)
    totals = known.key_by("account").aggregate(uid="totals", total=sum_("amount"), orders=count())
    totals.sink(job.totals())
    if not job.windows:
        return flow
    _windows(job, known)
    timed = known.select("at", "amount", bucket=_BUCKET)
    seconds = timed.key_by("bucket").process(
        Seconds(), uid=SECONDS, schema="bucket long, end_s long, orders long", timers="event"
    )
    seconds.sink(job.appended(SECONDS))
    small = timed.filter(pc.field("amount") < PAIRED_BELOW).key_by("bucket")
    small.join_within(timed.key_by("bucket"), PAIRS, after=f"{GAP_MS} milliseconds").sink(job.appended(PAIRS))
    return flow


def _windows(job: Job, orders: Stream) -> None:
    amount, at = pc.field("amount"), pc.field("at")
    for below, age in sorted(AGES.items(), reverse=True):
        at = pc.if_else(amount < below, pc.field("at") - age, at)
    by_bucket = orders.select(bucket=_BUCKET, at=at, amount=amount).key_by("bucket")
    parts = by_bucket.window(
        Tumbling(f"{WINDOW_S} seconds"), on="at", lateness="2 seconds", late="late", results="discarding"
    )
    sessions = by_bucket.window(Session(f"{GAP_MS} milliseconds"), on="at", late="late")
    for windows, table, late in ((parts, WINDOWS, LATE[0]), (sessions, SESSIONS, LATE[1])):
        sums = windows.aggregate(uid=table, total=sum_("amount"), orders=count())
        sums.sink(job.appended(table))
        sums.side("late").sink(job.appended(late))


if __name__ == "__main__":
    sys.exit(main())
