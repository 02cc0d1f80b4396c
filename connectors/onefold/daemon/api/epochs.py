"""The answers on epochs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field

from onefold.core import EpochState
from onefold.daemon.api.model import Model, Offsets, at_ms
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.store.history import StoredEpoch

__all__ = ["EpochDetail", "EpochModel", "EpochPage", "EpochStateName"]

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


class EpochModel(Model):
    epoch: int
    generation: int
    state: EpochStateName
    opened_at: datetime | None
    decided_at: datetime | None
    completed_at: datetime | None
    duration_s: float | None = Field(description="from its opening to its completion")
    commit_s: float | None = Field(description="from its decision to its completion")
    steps: StepsModel | None = Field(description="of an epoch that was finished since the daemon was started")
    rows: int
    bytes: int
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
        return cls(
            epoch=record.epoch,
            generation=record.generation,
            state=record.state.value,
            opened_at=at_ms(epoch.opened_ms),
            decided_at=at_ms(epoch.decided_ms),
            completed_at=completed_at,
            duration_s=epoch.duration_s,
            commit_s=epoch.commit_s,
            steps=None if steps is None else StepsModel(**asdict(steps)),
            rows=record.rows,
            bytes=epoch.bytes,
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

    @classmethod
    def of(cls, epoch: StoredEpoch, times: EpochTimes, **more: Any) -> Self:
        record = epoch.record
        manifest = [
            CommittableModel(
                sink=c.sink, kind=c.kind.value, handle=c.handle, generation=c.generation, rows=c.rows, bytes=c.bytes
            )
            for c in record.manifest
        ]
        return super().of(epoch, times, query_id=record.query_id, batch_id=record.batch_id, manifest=manifest, **more)


class EpochPage(Model):
    """The newest epochs first."""

    epochs: list[EpochModel]
