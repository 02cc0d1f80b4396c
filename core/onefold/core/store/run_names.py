"""The names of decided batch runs in the checkpoint store: kept for good, where epochs are pruned."""

from __future__ import annotations

import sqlalchemy as sa

from onefold.core.contract import EpochRecord
from onefold.core.errors import CheckpointMismatch
from onefold.core.protocol.runs import DecidedRun, run_of
from onefold.core.store.tables import runs

__all__ = ["adopt_name", "claim_name", "decided_run"]


def decided_run(connection: sa.Connection, pipeline: str, run: str) -> DecidedRun | None:
    row = connection.execute(_one(pipeline, run)).one_or_none()
    return DecidedRun(row.run, row.epoch, row.rows) if row else None


def claim_name(connection: sa.Connection, record: EpochRecord, now_ms: int) -> None:
    """Inside the decision of `record`: its run's name is taken from now on. Raises where it was taken before."""
    run = run_of(record.range.end)
    if not run:
        return
    taken = decided_run(connection, record.pipeline, run)
    if taken is not None:
        raise CheckpointMismatch(
            "run-already-written",
            f"run {run!r} of pipeline {record.pipeline!r} was written before, as epoch {taken.epoch}, so epoch"
            f" {record.epoch} can't be decided. Nothing was written twice; start the job again",
        )
    connection.execute(
        runs.insert().values(
            pipeline=record.pipeline, run=run, epoch=record.epoch, rows=record.rows, decided_at_ms=now_ms
        )
    )


def adopt_name(connection: sa.Connection, record: EpochRecord, now_ms: int) -> None:
    """Keep the run's name of an adopted epoch. The names of other epochs from there on are of another history."""
    mine = runs.c.pipeline == record.pipeline
    connection.execute(runs.delete().where(mine, runs.c.epoch >= record.epoch))
    run = run_of(record.range.end)
    if run and decided_run(connection, record.pipeline, run) is None:
        claim_name(connection, record, now_ms)


def _one(pipeline: str, run: str) -> sa.Select[tuple[object, ...]]:
    return sa.select(runs).where(runs.c.pipeline == pipeline, runs.c.run == run)
