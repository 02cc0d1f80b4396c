"""The answers on epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field

from onefold.core import EpochState
from onefold.core.invariants import ADOPTED
from onefold.core.moves import MoveNote
from onefold.daemon.api.model import Model, Offsets, at_ms, moment
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.flow.writing import STATE
from onefold.store.epoch_figures import Acknowledged, OperatorAcks, RunningEpoch
from onefold.store.history import StoredEpoch

EpochStateName = Literal["open", "decided", "complete", "given_up", "damaged"]
_SINK_STATES: dict[EpochState, Literal["acknowledged", "pending", "given_up", "damaged"]] = {
    EpochState.COMPLETE: "acknowledged",
    EpochState.OPEN: "pending",
    EpochState.DECIDED: "pending",  # each sink acknowledges by itself: the store knows when all have
    EpochState.GIVEN_UP: "given_up",
    EpochState.DAMAGED: "damaged",
}


class RangeModel(Model):
    """The source's positions, by `topic/partition`: the next offset to read at the start and at the end."""

    start: Offsets
    end: Offsets


class EpochSink(Model):
    name: str
    rows: int
    bytes: int
    state: Literal["acknowledged", "pending", "given_up", "damaged"]
    acknowledged_at: datetime | None


class StepsModel(Model):
    """How long each step of an epoch took: together, from the end of the epoch before."""

    wait_s: float = Field(description="for records, the epoch's interval or a resume; on Spark its planning too")
    open_s: float = Field(description="the store opens it, and what earlier ones have left is removed")
    run_s: float = Field(description="its records are read, processed and written")
    prepare_s: float | None = Field(
        description="the slowest worker prepares its sinks' work and stores its state; on Spark that is in `run_s`"
    )
    decide_s: float = Field(description="the prepared work is verified, and the store decides")
    commit_s: float = Field(description="each sink commits")


class SubtaskModel(Model):
    """What a subtask has acknowledged an epoch with."""

    at: datetime
    aligned_s: float = Field(description="from the first of its inputs' barriers to the last")
    held_bytes: int = Field(description="that had come by then on the inputs that waited")
    prepared_s: float = Field(description="in which it prepared its sinks' work and stored its state")
    state_bytes: int = Field(description="of its state, about")
    stored_bytes: int = Field(description="that were written of it for this epoch")
    how: Literal["aligned", "unaligned", "switched", "not aligned"] = Field(
        description="its barriers were waited for; overtaken, at once or after the timeout; each taken as it came"
    )
    flight_bytes: int = Field(description="of records that its barriers have overtaken")


class OperatorAcksModel(Model):
    """Operators that run together in one subtask a worker."""

    names: list[str]
    subtasks: list[SubtaskModel | None] = Field(description="by the workers' numbers; null before it has acknowledged")

    @classmethod
    def of(cls, found: OperatorAcks) -> Self:
        return cls(
            names=list(found.names), subtasks=[None if each is None else _subtask(each) for each in found.subtasks]
        )


def _subtask(found: Acknowledged) -> SubtaskModel:
    return SubtaskModel(at=moment(found.at_s), **{k: v for k, v in asdict(found).items() if k != "at_s"})


class RunningModel(Model):
    """The epoch that runs."""

    epoch: int
    since: datetime = Field(description="when it began to write")
    step: str = Field(description="of `steps`, without its unit")
    waits_for: list[str] = Field(description="the subtasks that have not acknowledged, those that work first")
    operators: list[OperatorAcksModel] = Field(description="on the engine, once it runs for over a second")

    @classmethod
    def of(cls, found: RunningEpoch | None) -> Self | None:
        if found is None:
            return None
        return cls(
            epoch=found.epoch,
            since=moment(found.since_s),
            step=found.step,
            waits_for=_waits_for(found),
            operators=[OperatorAcksModel.of(each) for each in found.operators],
        )


def _waits_for(running: RunningEpoch) -> list[str]:
    """A worker does one thing at a time, and a barrier comes by way of the operators before: so what works now is what
    the others wait for."""
    told: dict[bool, list[str]] = {True: [], False: []}
    for operator in running.operators:
        for worker, done in enumerate(operator.subtasks):
            if done is None:
                at = running.at[worker]
                works = at in operator.names
                told[works].append(f"{operator.names[0]} in worker {worker}" + (f", at work in {at}" if works else ""))
    return told[True] + told[False]


class EpochModel(Model):
    epoch: int
    kind: Literal["rows", "move", "adopted"] = Field(description="a move has no rows; a restore is one")
    why: str | None = Field(description="of a move")
    generation: int
    state: EpochStateName
    opened_at: datetime | None
    decided_at: datetime | None
    completed_at: datetime | None
    duration_s: float | None = Field(description="from its opening to its completion")
    commit_s: float | None = Field(description="from its decision to its completion")
    steps: StepsModel | None = Field(description="of an epoch that was finished since the daemon was started")
    rows: int
    bytes: int = Field(description="of these rows")
    state_bytes: int | None = Field(description="of its state, about; of the last hundred finished since the start")
    stored_bytes: int = Field(description="that were written of its state")
    range: RangeModel
    sinks: list[EpochSink]
    error: str | None

    @classmethod
    def of(cls, epoch: StoredEpoch, times: EpochTimes, **more: Any) -> Self:
        record = epoch.record
        is_complete = record.state is EpochState.COMPLETE
        by_sink = {name: [c for c in record.manifest if c.sink == name] for name in record.sinks}
        completed_at = at_ms(epoch.completed_ms)
        steps = times.of(record.epoch) if is_complete else None
        stored_bytes = sum(each.bytes for each in by_sink.get(STATE, ()))
        return cls(
            epoch=record.epoch,
            kind="move" if record.is_move else "adopted" if record.query_id == ADOPTED else "rows",
            why=(MoveNote.of(record).why or None) if record.is_move else None,
            generation=record.generation,
            state=record.state.value,
            opened_at=at_ms(epoch.opened_ms),
            decided_at=at_ms(epoch.decided_ms),
            completed_at=completed_at,
            duration_s=epoch.duration_s,
            commit_s=epoch.commit_s,
            steps=None if steps is None else StepsModel(**asdict(steps)),
            rows=record.rows,
            bytes=epoch.bytes - stored_bytes,
            state_bytes=_state_bytes(times.operators(record.epoch)) if is_complete else None,
            stored_bytes=stored_bytes,
            range=RangeModel(start=dict(record.range.start.items), end=dict(record.range.end.items)),
            sinks=[
                EpochSink(
                    name=name,
                    rows=sum(c.rows for c in mine),
                    bytes=sum(c.bytes for c in mine),
                    state=_SINK_STATES[record.state],
                    acknowledged_at=completed_at if is_complete else None,
                )
                for name, mine in by_sink.items()
            ],
            error=epoch.error,
            **more,
        )


def _state_bytes(operators: Sequence[OperatorAcks]) -> int | None:
    return sum(each.state_bytes for of in operators for each in of.subtasks if each) if operators else None


class CommittableModel(Model):
    """What one task has prepared in one sink: `handle` is the sink's own name of it."""

    sink: str
    kind: str
    handle: str
    generation: int
    rows: int
    bytes: int


class EpochDetail(EpochModel):
    """An epoch with its manifest."""

    query_id: str
    batch_id: int
    manifest: list[CommittableModel]
    operators: list[OperatorAcksModel] = Field(
        description="of the last hundred finished since the start, on the engine"
    )

    @classmethod
    def of(cls, epoch: StoredEpoch, times: EpochTimes, **more: Any) -> Self:
        record = epoch.record
        manifest = [
            CommittableModel(
                sink=c.sink, kind=c.kind.value, handle=c.handle, generation=c.generation, rows=c.rows, bytes=c.bytes
            )
            for c in record.manifest
        ]
        more |= {"query_id": record.query_id, "batch_id": record.batch_id, "manifest": manifest}
        operators = times.operators(record.epoch) if record.state is EpochState.COMPLETE else ()
        return super().of(epoch, times, operators=[OperatorAcksModel.of(each) for each in operators], **more)


class EpochPage(Model):
    """The newest epochs first."""

    epochs: list[EpochModel]
