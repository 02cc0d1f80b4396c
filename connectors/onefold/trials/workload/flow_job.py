"""The process of a flow on the embedded engine, which is there to be killed:
`python -m onefold.trials.workload.flow_job JOB.json`."""

from __future__ import annotations

import logging
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc

from onefold.core import OnefoldError
from onefold.flow import Flow, count, sum_
from onefold.trials.workload.workload_settings import TABLE, Job

__all__ = ["flow_of"]

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
    """The orders into each sink, without refunds; and on the engine, what the orders of each account come to, of those
    whose account the table would take."""
    flow = Flow(job.pipeline)
    orders = flow.source(job.source(), uid="orders", dead_letters=job.letters()).filter(pc.field("amount") > Decimal(0))
    rows = orders
    if job.cells_columns is not None:
        rows = orders.select(**{name: pc.field(column) for name, column in job.cells_columns.items()})
    for sink in job.sinks():
        # Appended rows go through an exchange, too. Other sinks have rows by key, or in the order in which they come.
        is_appended = sink.name == TABLE and job.mode == "append" and job.shuffled
        (rows.rebalance() if is_appended else rows).sink(sink)
    if not job.on_engine:
        return flow
    accounts = orders.filter(pc.field("account") > 0).key_by("account")
    accounts.aggregate(uid="totals", total=sum_("amount"), orders=count()).sink(job.totals())
    return flow


if __name__ == "__main__":
    sys.exit(main())
