"""What the API answers: times are ISO 8601 in UTC, names end in their unit, null is what is not known."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ActionName",
    "CommittableModel",
    "Counts",
    "DefinitionModel",
    "EdgeModel",
    "ElementModel",
    "EpochDetail",
    "EpochModel",
    "EpochPage",
    "EpochSink",
    "EpochsFailed",
    "GraphModel",
    "Health",
    "LagHistory",
    "LagPoint",
    "Latest",
    "LogLineModel",
    "LogModel",
    "OperatorModel",
    "PipelineError",
    "PipelineModel",
    "PipelineSink",
    "Problem",
    "RangeModel",
    "ReadyModel",
    "RecoveryModel",
    "SavepointModel",
    "SourceModel",
    "StateName",
    "StepsModel",
]

StateName = Literal["starting", "running", "paused", "waiting", "stopping", "stopped", "finished", "failed", "fenced"]
EpochStateName = Literal["open", "decided", "complete", "given_up", "damaged"]
ActionName = Literal["pause", "resume", "stop", "restart"]
Offsets = dict[str, int | str]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Problem(_Model):
    """Why a request was not answered, or not obeyed."""

    code: str = Field(description="docs/errors.md and docs/daemon.md list the codes")
    message: str


class Health(_Model):
    status: Literal["ok"] = "ok"


class ReadyModel(_Model):
    """Ready: every pipeline runs, is paused or has finished, and waits for no server."""

    is_ready: bool
    pipelines: dict[str, StateName]


class RangeModel(_Model):
    """The source's positions, by `topic/partition`: the next offset to read at the start and at the end."""

    start: Offsets
    end: Offsets


class EpochSink(_Model):
    name: str
    rows: int
    bytes: int
    state: Literal["acknowledged", "pending", "given_up", "damaged"]
    acknowledged_at: datetime | None


class StepsModel(_Model):
    """How long each step of an epoch took: together, from the end of the epoch before."""

    wait_s: float = Field(description="for records, the epoch's interval or a resume; on Spark its planning too")
    open_s: float = Field(description="the store opens it, and what earlier ones have left is removed")
    run_s: float = Field(description="its records are read, processed and written")
    prepare_s: float | None = Field(
        description="the slowest worker prepares its sinks' work and stores its state; on Spark that is in `run_s`"
    )
    decide_s: float = Field(description="the prepared work is verified, and the store decides")
    commit_s: float = Field(description="each sink commits")


class EpochModel(_Model):
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


class CommittableModel(_Model):
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


class EdgeModel(_Model):
    """An edge of the pipeline's graph, with what has flowed by it since the daemon was started; counted on the engine.
    What an epoch that runs again processes counts again."""

    source: str
    target: str
    label: str
    rows: int | None
    bytes: int | None
    rows_per_s: float | None = Field(description="of the last ten seconds, about")
    bytes_per_s: float | None


class OperatorModel(_Model):
    name: str
    busy: float | None = Field(description="the share of the workers' time that was spent in its code, lately: 0 to 1")
    backpressured: float | None = Field(
        description="the share of the time in which it waited to hand a batch on to other workers, lately: 0 to 1"
    )
    state_entries: int | None = Field(description="that it keeps by key, about")
    state_bytes: int | None = Field(description="of its last snapshot, about")


class ElementModel(_Model):
    """Of an SVG."""

    tag: str
    attributes: dict[str, str]
    children: list[ElementModel | str]


class GraphModel(_Model):
    svg: ElementModel | None = Field(
        description="the pipeline's graph, with what flows in it; null before its first start"
    )


class LagPoint(_Model):
    at: datetime
    behind: dict[str, int]


class LagHistory(_Model):
    """How far the pipeline was behind while this daemon looked, the oldest first."""

    points: list[LagPoint]


class DefinitionModel(_Model):
    """A pipeline's file, as it was when the daemon was started."""

    lines: list[str] = Field(description="a key and its value each; none where it is defined in Python")


class LogLineModel(_Model):
    at: datetime
    level: str
    message: str


class LogModel(_Model):
    """The last lines that were logged of a pipeline, the oldest first; what is said of each epoch is left out."""

    lines: list[LogLineModel]


class EpochPage(_Model):
    """The newest epochs first."""

    epochs: list[EpochModel]


class PipelineError(_Model):
    code: str
    message: str
    at: datetime | None


class SourceModel(_Model):
    kind: str
    name: str


class PipelineSink(_Model):
    """A sink and what it promises as it is set up now; null where it could not say yet."""

    name: str
    kind: str
    mode: str | None
    promise: Literal["exactly-once", "at-least-once"] | None
    atomic: bool | None = Field(description="whether readers see an epoch whole or not at all")
    reason: str | None = Field(description="on which conditions")


class Counts(_Model):
    """Of the epochs that the store keeps, which are the newest thousand."""

    triggered: int
    in_progress: int
    completed: int
    failed: int
    restored: int = Field(description="starts that went on where an earlier one stood")


class EpochsFailed(_Model):
    epoch: int
    state: EpochStateName
    at: datetime | None
    error: str | None


class RecoveryModel(_Model):
    """The last start: what it found of earlier ones."""

    generation: int
    at: datetime | None
    epochs_finished: int


class SavepointModel(_Model):
    """A savepoint, and when it was made or restored."""

    name: str
    epoch: int = Field(description="the last one that is in it")
    at: datetime


class Latest(_Model):
    completed: EpochModel | None
    failed: EpochsFailed | None
    savepoint: SavepointModel | None = Field(description="the last one that was made")
    restore: RecoveryModel | None
    savepoint_restored: SavepointModel | None = Field(description="the last one that was restored into it")


class PipelineModel(_Model):
    name: str
    state: StateName
    actions: list[ActionName] = Field(description="what is allowed now")
    generation: int | None
    epoch: int | None = Field(description="the last complete one")
    restarts: int = Field(description="after failures, since the process was started")
    error: PipelineError | None = Field(
        description="of its last failure; or, without its time, of a server that is waited for"
    )
    next_start_at: datetime | None
    started_at: datetime | None
    progress_at: datetime | None = Field(description="when the last epoch of this process was complete")
    source: SourceModel
    sinks: list[PipelineSink]
    edges: list[EdgeModel] = Field(description="of its graph; none before its first start")
    operators: list[OperatorModel]
    positions: Offsets | None
    lag: dict[str, int] | None = Field(
        description="how much can be read and is not written, by partition, as `positions` has them"
    )
    behind: dict[str, int] | None = Field(description="the same in all, by what is counted: record, file, table")
    counts: Counts | None
    latest: Latest
    in_doubt: int | None = Field(description="prepared transactions of its sinks; those of a running epoch count")
    oldest_prepared_s: float | None
    dead_letters: int | None = Field(description="of its source, since the process was started")
    takes_dead_letters: bool = Field(description="whether it has sinks of dead letters: of its source, or of rows")
    store_error: PipelineError | None = Field(description="why the store's figures are missing")
