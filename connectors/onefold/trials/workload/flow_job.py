"""The process of a flow on the embedded engine, which is there to be killed:
`python -m onefold.trials.workload.flow_job JOB.json`."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc

from onefold.core import OnefoldError
from onefold.flow import Flow, Session, Stream, Tumbling, bounded, count, sum_
from onefold.trials.workload.workload_settings import LATE, PAIRS, SESSIONS, TABLE, WINDOWS, Job

__all__ = ["AGES", "BUCKETS", "DISORDER_MS", "GAP_MS", "PAIRED_BELOW", "WINDOW_S", "flow_of"]

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
        flow_of(job).run(checkpoint=job.checkpoint, workers=job.workers, state=job.state, store=job.store)
    except OnefoldError as error:
        log.exception("the flow ends")
        return error.exit_code
    return 0


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
    if not job.windows:
        return flow
    known = orders.filter(pc.field("account") > 0)
    totals = known.key_by("account").aggregate(uid="totals", total=sum_("amount"), orders=count())
    totals.sink(job.totals())
    _windows(job, known)
    timed = known.select("at", "amount", bucket=_BUCKET)
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
