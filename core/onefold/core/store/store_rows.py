"""Rows of the checkpoint store's tables, and the values they stand for."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from onefold.core.contract import MOVED, Committable, EpochRecord, EpochState, SinkKind
from onefold.core.positions import Positions, Range
from onefold.core.store.tables import epochs, pipelines

__all__ = [
    "DECIDED_STATES",
    "decided_moves",
    "epochs_before",
    "last_epoch",
    "of_pipeline",
    "pipeline_row",
    "record_of",
    "stored_epoch",
    "this_epoch",
    "unfinished_epochs",
    "values_of",
]

DECIDED_STATES = (EpochState.DECIDED.value, EpochState.COMPLETE.value)


def pipeline_row(pipeline: str) -> sa.Select[Any]:
    return sa.select(pipelines).where(pipelines.c.pipeline == pipeline)


def of_pipeline(table: sa.Table, pipeline: str) -> sa.Update:
    return table.update().where(table.c.pipeline == pipeline)


def this_epoch(record: EpochRecord) -> sa.Update:
    return epochs.update().where(epochs.c.pipeline == record.pipeline, epochs.c.epoch == record.epoch)


def stored_epoch(connection: sa.Connection, record: EpochRecord) -> EpochRecord | None:
    query = sa.select(epochs).where(epochs.c.pipeline == record.pipeline, epochs.c.epoch == record.epoch)
    row = connection.execute(query).one_or_none()
    return record_of(row) if row else None


def last_epoch(connection: sa.Connection, pipeline: str, states: tuple[str, ...]) -> EpochRecord | None:
    query = sa.select(epochs).where(epochs.c.pipeline == pipeline, epochs.c.state.in_(states))
    row = connection.execute(query.order_by(epochs.c.epoch.desc()).limit(1)).one_or_none()
    return record_of(row) if row else None


def unfinished_epochs(connection: sa.Connection, pipeline: str) -> tuple[EpochRecord, ...]:
    states = (EpochState.OPEN.value, EpochState.DECIDED.value, EpochState.DAMAGED.value)
    query = sa.select(epochs).where(epochs.c.pipeline == pipeline, epochs.c.state.in_(states)).order_by(epochs.c.epoch)
    return tuple(record_of(row) for row in connection.execute(query))


def epochs_before(record: EpochRecord, kept: int, states: tuple[str, ...]) -> sa.Delete:
    """What is pruned: those in `states`, more than `kept` numbers below the record's. Moves stay: without them nobody
    knows which records the pipeline was to write."""
    return epochs.delete().where(
        epochs.c.pipeline == record.pipeline,
        epochs.c.epoch < record.epoch - kept,
        epochs.c.state.in_(states),
        (epochs.c.query_id != MOVED) | (epochs.c.state == EpochState.GIVEN_UP.value),
    )


def decided_moves(connection: sa.Connection, pipeline: str) -> list[EpochRecord]:
    """The epochs that moved the positions, the oldest first."""
    query = sa.select(epochs).where(
        epochs.c.pipeline == pipeline, epochs.c.query_id == MOVED, epochs.c.state.in_(DECIDED_STATES)
    )
    return [record_of(row) for row in connection.execute(query.order_by(epochs.c.epoch))]


def values_of(record: EpochRecord) -> dict[str, Any]:
    return {
        "pipeline": record.pipeline,
        "epoch": record.epoch,
        "generation": record.generation,
        "state": record.state.value,
        "range_start": record.range.start.to_json(),
        "range_end": record.range.end.to_json(),
        "timestamp_ms": record.timestamp_ms,
        "query_id": record.query_id,
        "batch_id": record.batch_id,
        "fingerprint": record.fingerprint,
        "manifest": json.dumps([asdict(c) | {"kind": c.kind.value} for c in record.manifest]),
        "sinks": json.dumps(record.sinks),
        "write_through": json.dumps(record.write_through),
        "rows": record.rows,
        "bytes": sum(c.bytes for c in record.manifest),
    }


def record_of(row: Any) -> EpochRecord:
    return EpochRecord(
        pipeline=row.pipeline,
        epoch=row.epoch,
        generation=row.generation,
        state=EpochState(row.state),
        range=Range(Positions.from_json(row.range_start), Positions.from_json(row.range_end)),
        timestamp_ms=row.timestamp_ms,
        query_id=row.query_id,
        batch_id=row.batch_id,
        fingerprint=row.fingerprint,
        manifest=tuple(Committable(**c | {"kind": SinkKind(c["kind"])}) for c in json.loads(row.manifest)),
        sinks=tuple(json.loads(row.sinks)),
        write_through=tuple(json.loads(row.write_through)),
    )
