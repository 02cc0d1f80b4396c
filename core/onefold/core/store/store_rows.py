"""Rows of the checkpoint store's tables, and the values they stand for.

The statements of an epoch are built here, once: to build one costs several times what it takes to run it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from onefold.core.contract import MOVED, Committable, EpochRecord, EpochState, Generation, SinkKind
from onefold.core.invariants import ADOPTED
from onefold.core.positions import Positions, Range
from onefold.core.sql.backends import Bound
from onefold.core.store.tables import epochs, pipelines

__all__ = [
    "DECIDED_STATES",
    "Chain",
    "asking_chain",
    "asking_stored_and_last",
    "chain_of",
    "completing",
    "decided_moves",
    "deciding",
    "epochs_before",
    "found_epochs",
    "last_epoch",
    "locking",
    "of_pipeline",
    "opening",
    "pipeline_row",
    "record_of",
    "stored_and_last",
    "stored_epoch",
    "this_epoch",
    "unfinished_epochs",
    "values_of",
]

DECIDED_STATES = (EpochState.DECIDED.value, EpochState.COMPLETE.value)
_UNFINISHED = (EpochState.OPEN.value, EpochState.DECIDED.value, EpochState.DAMAGED.value)

# Parameters; those of an UPDATE must not be named as its columns are.
_PIPELINE, _EPOCH = sa.bindparam("of_pipeline", type_=sa.String()), sa.bindparam("of_epoch", type_=sa.BigInteger())
_OF_PIPELINE = epochs.c.pipeline == _PIPELINE
_IS_UNFINISHED = sa.or_(*(epochs.c.state == state for state in _UNFINISHED))
_IS_DECIDED = sa.or_(*(epochs.c.state == state for state in DECIDED_STATES))
_LAST = epochs.alias("last")
_LAST_DECIDED = (
    sa.select(_LAST.c.epoch)
    .where(_LAST.c.pipeline == _PIPELINE, sa.or_(*(_LAST.c.state == state for state in DECIDED_STATES)))
    .order_by(_LAST.c.epoch.desc())
    .limit(1)
    .scalar_subquery()
)
_PIPELINE_ROW = sa.select(pipelines).where(pipelines.c.pipeline == _PIPELINE)
_LOCKED_ROW = _PIPELINE_ROW.with_for_update()
_UNFINISHED_EPOCHS = sa.select(epochs).where(_OF_PIPELINE, _IS_UNFINISHED).order_by(epochs.c.epoch)
_UNFINISHED_AND_LAST = (
    sa.select(epochs).where(_OF_PIPELINE, _IS_UNFINISHED | (epochs.c.epoch == _LAST_DECIDED)).order_by(epochs.c.epoch)
)
_STORED_AND_LAST = sa.select(epochs).where(_OF_PIPELINE, (epochs.c.epoch == _EPOCH) | (epochs.c.epoch == _LAST_DECIDED))
_STORED = sa.select(epochs).where(_OF_PIPELINE, epochs.c.epoch == _EPOCH)
_HIGHEST = sa.select(sa.func.max(epochs.c.epoch), sa.func.max(epochs.c.timestamp_ms)).where(_OF_PIPELINE)


def _begins_with(column: sa.Column[str], name: str) -> sa.ColumnElement[bool]:
    length = sa.bindparam(f"{name}_length", type_=sa.Integer())
    return sa.func.substr(column, 1, length) == sa.bindparam(name, type_=sa.Text())


_FOUND = (
    sa.select(epochs)
    .where(_OF_PIPELINE, _IS_DECIDED, _begins_with(epochs.c.range_start, "start"))
    .where(_begins_with(epochs.c.range_end, "end"))
    .order_by(epochs.c.epoch.desc())
)
_INSERT = epochs.insert().values({column.name: sa.bindparam(column.name) for column in epochs.c})
_THIS = epochs.update().where(_OF_PIPELINE, epochs.c.epoch == _EPOCH)
_COMPLETE = _THIS.where(epochs.c.state == EpochState.DECIDED.value).values(
    state=sa.bindparam("new_state"), completed_at_ms=sa.bindparam("at_ms")
)
_DECIDE = _THIS.values(
    state=sa.bindparam("new_state"),
    manifest=sa.bindparam("new_manifest"),
    rows=sa.bindparam("new_rows"),
    bytes=sa.bindparam("new_bytes"),
    decided_at_ms=sa.bindparam("at_ms"),
)


def pipeline_row(pipeline: str) -> sa.Select[Any]:
    return sa.select(pipelines).where(pipelines.c.pipeline == pipeline)


def locking(pipeline: str) -> Bound:
    """Answers with the pipeline's row, locked to the end of the transaction; with none if there is none."""
    return _LOCKED_ROW, {"of_pipeline": pipeline}


def of_pipeline(table: sa.Table, pipeline: str) -> sa.Update:
    return table.update().where(table.c.pipeline == pipeline)


def this_epoch(record: EpochRecord) -> sa.Update:
    return epochs.update().where(epochs.c.pipeline == record.pipeline, epochs.c.epoch == record.epoch)


def stored_epoch(connection: sa.Connection, record: EpochRecord) -> EpochRecord | None:
    row = connection.execute(_STORED, _key(record)).one_or_none()
    return record_of(row) if row else None


def asking_stored_and_last(record: EpochRecord) -> Bound:
    return _STORED_AND_LAST, _key(record)


def stored_and_last(rows: Sequence[Any], record: EpochRecord) -> tuple[EpochRecord | None, EpochRecord | None]:
    """The epoch as the store has it, and the last one past its commit point."""
    found = [record_of(row) for row in rows]
    return next((r for r in found if r.epoch == record.epoch), None), _last_of(found)


def last_epoch(connection: sa.Connection, pipeline: str, states: tuple[str, ...]) -> EpochRecord | None:
    query = sa.select(epochs).where(epochs.c.pipeline == pipeline, epochs.c.state.in_(states))
    row = connection.execute(query.order_by(epochs.c.epoch.desc()).limit(1)).one_or_none()
    return record_of(row) if row else None


def unfinished_epochs(connection: sa.Connection, pipeline: str) -> tuple[EpochRecord, ...]:
    rows = connection.execute(_UNFINISHED_EPOCHS, {"of_pipeline": pipeline})
    return tuple(record_of(row) for row in rows)


@dataclass(frozen=True, slots=True)
class Chain:
    """Where a pipeline's epochs stand: those that are open, decided or damaged, the last one past its commit point, and
    the highest number and T of all; 0 where there is none."""

    unfinished: tuple[EpochRecord, ...]
    last: EpochRecord | None
    number: int
    newest_ms: int


def asking_chain(pipeline: str) -> Bound:
    return _UNFINISHED_AND_LAST, {"of_pipeline": pipeline}


def chain_of(connection: sa.Connection, generation: Generation, rows: Sequence[Any]) -> Chain:
    """By what `asking_chain` answers, to a transaction of this generation."""
    found = [record_of(row) for row in rows]
    unfinished = tuple(record for record in found if record.state.value in _UNFINISHED)
    last = _last_of(found)
    if last is not None and last.generation == generation.number and last.query_id != ADOPTED:
        # This generation opened it, above all others, and nothing since. (One it adopted may be older than others.)
        return Chain(unfinished, last, last.epoch, last.timestamp_ms)
    row = connection.execute(_HIGHEST, {"of_pipeline": generation.pipeline}).one()
    return Chain(unfinished, last, row[0] or 0, row[1] or 0)


def found_epochs(connection: sa.Connection, pipeline: str, span: Range) -> list[EpochRecord]:
    """The decided and complete epochs of exactly these positions, the newest first; marks are not compared."""
    texts = {"start": _text(span.start), "end": _text(span.end)}
    lengths = {f"{name}_length": len(text) for name, text in texts.items()}
    rows = connection.execute(_FOUND, {"of_pipeline": pipeline} | texts | lengths)
    return [record_of(row) for row in rows]


def opening(record: EpochRecord, now_ms: int) -> Bound:
    unset = {"decided_at_ms": None, "completed_at_ms": None, "error": None}
    return _INSERT, values_of(record) | unset | {"opened_at_ms": now_ms}


def deciding(record: EpochRecord, now_ms: int) -> Bound:
    """Writes the state and the manifest."""
    values = values_of(record)
    decided = {f"new_{name}": values[name] for name in ("state", "manifest", "rows", "bytes")}
    return _DECIDE, _key(record) | decided | {"at_ms": now_ms}


def completing(record: EpochRecord, now_ms: int) -> Bound:
    """Changes one row; none unless it is decided and not complete."""
    return _COMPLETE, _key(record) | {"new_state": EpochState.COMPLETE.value, "at_ms": now_ms}


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


def _key(record: EpochRecord) -> dict[str, Any]:
    return {"of_pipeline": record.pipeline, "of_epoch": record.epoch}


def _last_of(records: list[EpochRecord]) -> EpochRecord | None:
    decided = [record for record in records if record.state.value in DECIDED_STATES]
    return max(decided, key=lambda record: record.epoch, default=None)


def _text(positions: Positions) -> str:
    """How the column of these positions begins, whatever the marks behind them are."""
    return Positions(positions.items).to_json().removesuffix("}")


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
