"""The names of decided batch runs in the checkpoint store: kept for good, where epochs are pruned."""

from __future__ import annotations

from onefold.clients.sql.database import Transaction
from onefold.core.contract import EpochRecord
from onefold.core.errors import CheckpointMismatch
from onefold.core.protocol.runs import DecidedRun, run_of
from onefold.store.store_rows import adding

__all__ = ["adopt_name", "claim_name", "decided_run"]


def decided_run(transaction: Transaction, pipeline: str, run: str) -> DecidedRun | None:
    asked = 'SELECT run, epoch, "rows" FROM onefold_runs WHERE pipeline = %(pipeline)s AND run = %(run)s'
    return next((DecidedRun(*row) for row in transaction.rows(asked, {"pipeline": pipeline, "run": run})), None)


def claim_name(transaction: Transaction, record: EpochRecord, now_ms: int) -> None:
    """Inside the decision of `record`: its run's name is taken from now on. Raises where it was taken before."""
    run = run_of(record.range.end)
    if not run:
        return
    taken = decided_run(transaction, record.pipeline, run)
    if taken is not None:
        raise CheckpointMismatch(
            "run-already-written",
            f"run {run!r} of pipeline {record.pipeline!r} was written before, as epoch {taken.epoch}, so epoch"
            f" {record.epoch} can't be decided. Nothing was written twice; start the job again",
        )
    values = {"epoch": record.epoch, "rows": record.rows, "decided_at_ms": now_ms}
    transaction.run(adding("onefold_runs", {"pipeline": record.pipeline, "run": run, **values}))


def adopt_name(transaction: Transaction, record: EpochRecord, now_ms: int) -> None:
    """Keep the run's name of an adopted epoch. The names of other epochs from there on are of another history."""
    others = "DELETE FROM onefold_runs WHERE pipeline = %(pipeline)s AND epoch >= %(epoch)s"
    transaction.run((others, {"pipeline": record.pipeline, "epoch": record.epoch}))
    run = run_of(record.range.end)
    if run and decided_run(transaction, record.pipeline, run) is None:
        claim_name(transaction, record, now_ms)
