"""Rows of the checkpoint store's tables, and the values they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onefold.clients.sql.database import Transaction
from onefold.clients.sql.database_backend import Statement
from onefold.core.contract import MOVED, Committable, EpochRecord, EpochState, Generation, SinkKind
from onefold.core.errors import CheckpointMismatch
from onefold.core.invariants import ADOPTED
from onefold.core.positions import Positions, Range
from onefold.core.protocol.runs import DecidedRun, run_of

_DECIDED_STATES = (EpochState.DECIDED, EpochState.COMPLETE)
_UNFINISHED = (EpochState.OPEN, EpochState.DECIDED, EpochState.DAMAGED)
_ALL = "SELECT * FROM onefold_epochs WHERE pipeline = %(pipeline)s"
_DECIDED = "state IN ('decided', 'complete')"
_IS_UNFINISHED = "state IN ('open', 'decided', 'damaged')"
_LAST = "(SELECT epoch FROM onefold_epochs WHERE pipeline = %(pipeline)s AND {} ORDER BY epoch DESC LIMIT 1)"
_LAST_DECIDED, _LAST_COMPLETE = _LAST.format(_DECIDED), _LAST.format("state = 'complete'")
_PIPELINE_ROW = "SELECT * FROM onefold_pipelines WHERE pipeline = %(pipeline)s"
LOCKED_ROW = f"{_PIPELINE_ROW} FOR UPDATE"
ROW_AND_LAST = (
    _PIPELINE_ROW,
    f"{_ALL} AND ({_IS_UNFINISHED} OR epoch = {_LAST_DECIDED} OR epoch = {_LAST_COMPLETE}) ORDER BY epoch",
)
UNFINISHED_AND_LAST = f"{_ALL} AND ({_IS_UNFINISHED} OR epoch = {_LAST_DECIDED}) ORDER BY epoch"
STORED_AND_LAST = f"{_ALL} AND (epoch = %(epoch)s OR epoch = {_LAST_DECIDED})"
_HIGHEST = (
    "SELECT max(epoch) AS epoch, max(timestamp_ms) AS timestamp_ms FROM onefold_epochs WHERE pipeline = %(pipeline)s"
)
_FOUND = (
    f"{_ALL} AND {_DECIDED} AND substr(range_start, 1, %(start_length)s) = %(start)s"
    " AND substr(range_end, 1, %(end_length)s) = %(end)s ORDER BY epoch DESC"
)
_OF_EPOCH = "WHERE pipeline = %(pipeline)s AND epoch = %(epoch)s"
_COMPLETE = (
    "UPDATE onefold_epochs SET state = 'complete', completed_at_ms = coalesce(completed_at_ms, %(at_ms)s) "
    f"{_OF_EPOCH} AND {_DECIDED}"
)
_DECIDE = (
    "UPDATE onefold_epochs SET state = %(state)s, manifest = %(manifest)s, "
    f'"rows" = %(rows)s, bytes = %(bytes)s, decided_at_ms = %(at_ms)s {_OF_EPOCH}'
)


def pipeline_row(transaction: Transaction, pipeline: str, *, is_locked: bool = False) -> Any:
    """None if there is none. A row that is locked stays so to the transaction's end."""
    rows = transaction.rows(LOCKED_ROW if is_locked else _PIPELINE_ROW, {"pipeline": pipeline})
    return next(iter(rows), None)


def setting(table: str, of: Mapping[str, Any], **values: Any) -> Statement:
    """Changes the rows that have all values of `of`."""
    given = {f"new_{name}": value for name, value in values.items()}
    assigned = ", ".join(f"{name} = %(new_{name})s" for name in values)
    return f"UPDATE {table} SET {assigned} WHERE {_are(of)}", {**of, **given}


def adding(table: str, values: Mapping[str, Any]) -> Statement:
    names = ", ".join('"rows"' if name == "rows" else name for name in values)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join(f'%({name})s' for name in values)})", values


def removing(table: str, **of: Any) -> Statement:
    return f"DELETE FROM {table} WHERE {_are(of)}", of


def _are(of: Mapping[str, Any]) -> str:
    return " AND ".join(f"{name} = %({name})s" for name in of)


def this_epoch(record: EpochRecord, **values: Any) -> Statement:
    """Changes the epoch's row."""
    return setting("onefold_epochs", key_of(record), **values)


def stored_epoch(transaction: Transaction, record: EpochRecord) -> EpochRecord | None:
    return next(iter(epochs_where(transaction, record.pipeline, "epoch = %(epoch)s", epoch=record.epoch)), None)


def stored_and_last(rows: Sequence[Any], record: EpochRecord) -> tuple[EpochRecord | None, EpochRecord | None]:
    """By what STORED_AND_LAST answers: the epoch as the store has it, and the last one past its commit point."""
    found = [record_of(row) for row in rows]
    return next((r for r in found if r.epoch == record.epoch), None), _last_of(found)


def epochs_where(transaction: Transaction, pipeline: str, condition: str, **values: Any) -> list[EpochRecord]:
    """Those of a pipeline's epochs. The condition may go on with ORDER BY."""
    return [record_of(row) for row in transaction.rows(f"{_ALL} AND {condition}", {"pipeline": pipeline, **values})]


def unfinished_epochs(transaction: Transaction, pipeline: str) -> tuple[EpochRecord, ...]:
    return tuple(epochs_where(transaction, pipeline, f"{_IS_UNFINISHED} ORDER BY epoch"))


def unfinished_and_last(
    rows: Sequence[Any],
) -> tuple[tuple[EpochRecord, ...], EpochRecord | None, EpochRecord | None]:
    """By what the second of ROW_AND_LAST answers: those that are unfinished, the last past its commit point, and the
    last that is complete."""
    found = [record_of(row) for row in rows]
    complete = [record for record in found if record.state is EpochState.COMPLETE]
    return tuple(record for record in found if record.state in _UNFINISHED), _last_of(found), _last_of(complete)


@dataclass(frozen=True, slots=True)
class EpochChain:
    """Where a pipeline's epochs stand: those that are open, decided or damaged, the last one past its commit point, and
    the highest number and T of all; 0 where there is none."""

    unfinished: tuple[EpochRecord, ...]
    last: EpochRecord | None
    number: int
    newest_ms: int


def chain_of(transaction: Transaction, generation: Generation, rows: Sequence[Any]) -> EpochChain:
    """By what UNFINISHED_AND_LAST answers, to a transaction of this generation."""
    found = [record_of(row) for row in rows]
    unfinished = tuple(record for record in found if record.state in _UNFINISHED)
    last = _last_of(found)
    if last is not None and last.generation == generation.number and last.query_id != ADOPTED:
        # This generation opened it, above all others, and nothing since. (One it adopted may be older than others.)
        return EpochChain(unfinished, last, last.epoch, last.timestamp_ms)
    (row,) = transaction.rows(_HIGHEST, {"pipeline": generation.pipeline})
    return EpochChain(unfinished, last, row.epoch or 0, row.timestamp_ms or 0)


def found_epochs(transaction: Transaction, pipeline: str, span: Range) -> list[EpochRecord]:
    """The decided and complete epochs of exactly these positions, the newest first; marks are not compared."""
    texts = {"start": _text(span.start), "end": _text(span.end)}
    lengths = {f"{name}_length": len(text) for name, text in texts.items()}
    return [record_of(row) for row in transaction.rows(_FOUND, {"pipeline": pipeline, **texts, **lengths})]


def opening(record: EpochRecord, now_ms: int) -> Statement:
    return adding("onefold_epochs", {**values_of(record), "opened_at_ms": now_ms})


def deciding(record: EpochRecord, now_ms: int) -> Statement:
    """Writes the state and the manifest."""
    values = values_of(record)
    decided = {name: values[name] for name in ("pipeline", "epoch", "state", "manifest", "rows", "bytes")}
    return _DECIDE, {**decided, "at_ms": now_ms}


def decided_at_once(record: EpochRecord, now_ms: int) -> Statement:
    """Writes an epoch that was not stored before; its T is when it was opened."""
    return adding("onefold_epochs", {**values_of(record), "opened_at_ms": record.timestamp_ms, "decided_at_ms": now_ms})


def completing(record: EpochRecord, now_ms: int) -> Statement:
    """Changes one row; none unless it is decided. What is complete already stays as it is."""
    return _COMPLETE, {**key_of(record), "at_ms": now_ms}


def pruning(record: EpochRecord, kept: int, *states: EpochState) -> Statement:
    """Removes those in `states`, more than `kept` numbers below the record's. Moves stay: without them nobody knows
    which records the pipeline was to write."""
    condition = f"state IN ({', '.join(repr(state.value) for state in states)})"
    statement = (
        f"DELETE FROM onefold_epochs WHERE pipeline = %(pipeline)s AND epoch < %(before)s AND {condition}"
        " AND (query_id <> %(moved)s OR state = 'given_up')"
    )
    return statement, {"pipeline": record.pipeline, "before": record.epoch - kept, "moved": MOVED}


def decided_moves(transaction: Transaction, pipeline: str) -> list[EpochRecord]:
    """The epochs that moved the positions, the oldest first."""
    condition = f"query_id = %(moved)s AND {_DECIDED} ORDER BY epoch"
    return epochs_where(transaction, pipeline, condition, moved=MOVED)


def key_of(record: EpochRecord) -> dict[str, Any]:
    return {"pipeline": record.pipeline, "epoch": record.epoch}


def _last_of(records: list[EpochRecord]) -> EpochRecord | None:
    decided = [record for record in records if record.state in _DECIDED_STATES]
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
        "manifest": json.dumps([_named(committable) for committable in record.manifest]),
        "sinks": json.dumps(record.sinks),
        "write_through": json.dumps(record.write_through),
        "rows": record.rows,
        "bytes": sum(c.bytes for c in record.manifest),
    }


def _named(committable: Committable) -> dict[str, Any]:
    named = asdict(committable) | {"kind": committable.kind.value}
    del named["payload"]
    return named


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


def decided_run(transaction: Transaction, pipeline: str, run: str) -> DecidedRun | None:
    """The batch run of that name: names are kept for good, where epochs are pruned."""
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
