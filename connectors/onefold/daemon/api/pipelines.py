"""The answers on pipelines, made of a pipeline's run, and of what was last seen of its store and its servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Literal

from pydantic import Field

from onefold.core import EpochState, Guarantee, OnefoldError, Sink
from onefold.core.source import Source
from onefold.core.values.plain import shown_url
from onefold.daemon.api.epochs import EpochModel, EpochStateName, RunningModel
from onefold.daemon.api.graphs import EdgeModel, OperatorModel
from onefold.daemon.api.model import Model, Offsets, at, at_ms, moment
from onefold.daemon.pipeline_run import Run
from onefold.daemon.watch.watch import Watch
from onefold.operate.lags import in_all
from onefold.operate.letters.letter import takes_letters
from onefold.store.epoch_figures import GaveUp
from onefold.store.history import PipelineStatus, StoredEpoch
from onefold.store.savepoint_notes import SavepointNote

StateName = Literal["starting", "running", "paused", "waiting", "stopping", "stopped", "finished", "failed", "fenced"]
ActionName = Literal["pause", "resume", "stop", "restart"]
_KINDS = {"KafkaSource": "kafka", "FileSource": "files", "PostgresSource": "postgres", "HBaseSource": "hbase"}


class Health(Model):
    status: Literal["ok"] = "ok"


class ReadyModel(Model):
    """Ready: every pipeline runs, is paused or has finished, and waits for no server."""

    is_ready: bool
    pipelines: dict[str, StateName]


class LagPoint(Model):
    at: datetime
    behind: dict[str, int]


class LagHistory(Model):
    """How far the pipeline was behind while this daemon looked, the oldest first."""

    points: list[LagPoint]

    @classmethod
    def of(cls, watch: Watch) -> LagHistory:
        return cls(points=[LagPoint(at=moment(at_s), behind=behind) for at_s, behind in list(watch.lags)])


class DefinitionModel(Model):
    """A pipeline's file, as it was when the daemon was started."""

    lines: list[str] = Field(description="a key and its value each; none where it is defined in Python")


class LogLineModel(Model):
    at: datetime
    level: str
    message: str


class LogModel(Model):
    """The last lines that were logged of a pipeline, the oldest first; what is said of each epoch is left out."""

    lines: list[LogLineModel]

    @classmethod
    def of(cls, watch: Watch) -> LogModel:
        found = watch.control.run.hosted.lines
        return cls(lines=[LogLineModel(at=moment(each.at_s), level=each.level, message=each.message) for each in found])


class PipelineError(Model):
    code: str
    message: str
    at: datetime | None

    @classmethod
    def of(cls, error: OnefoldError | None, at: datetime | None = None) -> PipelineError | None:
        return None if error is None else cls(code=error.code, message=error.message, at=at)


class SourceModel(Model):
    kind: str
    name: str

    @classmethod
    def of(cls, sources: Sequence[Source]) -> SourceModel:
        kinds = sorted({_KINDS.get(type(source).__name__, type(source).__name__) for source in sources})
        return cls(kind=",".join(kinds), name=", ".join(source.name for source in sources))


class PipelineSink(Model):
    """A sink and what it promises as it is set up now; null where it could not say yet."""

    name: str
    kind: str
    mode: str | None
    promise: Literal["exactly-once", "at-least-once"] | None
    atomic: bool | None = Field(description="whether readers see an epoch whole or not at all")
    reason: str | None = Field(description="on which conditions")

    @classmethod
    def of(cls, sink: Sink, found: Guarantee | None) -> PipelineSink:
        kind = type(sink).__name__.removesuffix("Sink").lower()
        if found is None:
            return cls(name=sink.name, kind=kind, mode=None, promise=None, atomic=None, reason=None)
        return cls(
            name=sink.name,
            kind=kind,
            mode=found.mode,
            promise="at-least-once" if found.mode == "at_least_once" else "exactly-once",
            atomic=found.atomic_epoch,
            reason="; ".join(found.conditions) or None,
        )


class Counts(Model):
    """Of the epochs that the store keeps, which are the newest thousand, and of those given up since the start."""

    triggered: int
    in_progress: int
    completed: int
    failed: int = Field(description="given up or damaged; a run that was given up counts, though the epoch ran again")
    restored: int = Field(description="starts that went on where an earlier one stood")

    @classmethod
    def of(cls, status: PipelineStatus, run: Run) -> Counts:
        """An epoch that runs is in its process's memory, and in the store with its decision; one that is given up on
        the engine is not."""
        counts, given_up = status.counts, run.totals.given_up
        stored = counts.get(EpochState.OPEN, 0) + counts.get(EpochState.DECIDED, 0)
        in_memory = int(run.hosted.status.running is not None and not stored)
        return cls(
            triggered=sum(counts.values()) + in_memory + given_up,
            in_progress=stored + in_memory,
            completed=counts.get(EpochState.COMPLETE, 0),
            failed=counts.get(EpochState.GIVEN_UP, 0) + counts.get(EpochState.DAMAGED, 0) + given_up,
            restored=max(0, status.starts - 1),
        )


class EpochsFailed(Model):
    epoch: int
    state: EpochStateName
    at: datetime | None
    error: str | None

    @classmethod
    def of(cls, stored: StoredEpoch | None, gave_up: GaveUp | None) -> EpochsFailed | None:
        """The later one: a run that was given up, or what the store has."""
        if gave_up is not None and (stored is None or stored.record.epoch <= gave_up.epoch):
            return cls(epoch=gave_up.epoch, state="given_up", at=moment(gave_up.at_s), error=gave_up.why)
        if stored is None:
            return None
        return cls(
            epoch=stored.record.epoch,
            state=stored.record.state.value,
            at=at_ms(stored.decided_ms or stored.opened_ms),
            error=stored.error,
        )


class RecoveryModel(Model):
    """The last start: what it found of earlier ones."""

    generation: int
    at: datetime | None
    epochs_finished: int


class SavepointModel(Model):
    """A savepoint, and when it was made or restored."""

    name: str
    epoch: int = Field(description="the last one that is in it")
    at: datetime

    @classmethod
    def of(cls, note: SavepointNote | None) -> SavepointModel | None:
        return None if note is None else cls(name=note.name, epoch=note.epoch, at=moment(note.at_ms / 1000))


class Latest(Model):
    completed: EpochModel | None
    failed: EpochsFailed | None
    savepoint: SavepointModel | None = Field(description="the last one that was made")
    restore: RecoveryModel | None
    savepoint_restored: SavepointModel | None = Field(description="the last one that was restored into it")

    @classmethod
    def of(cls, status: PipelineStatus | None, run: Run) -> Latest:
        complete, failed = (None, None) if status is None else (status.complete, status.failed)
        found = run.hosted.status.recovered
        return cls(
            completed=None if complete is None else EpochModel.of(complete, run.hosted.epochs),
            failed=EpochsFailed.of(failed, run.hosted.status.gave_up),
            savepoint=SavepointModel.of(None if status is None else status.savepoint),
            restore=None
            if found is None
            else RecoveryModel(
                generation=found.generation,
                at=at(run.hosted.status.started_at_s),
                epochs_finished=found.finished,
            ),
            savepoint_restored=SavepointModel.of(None if status is None else status.restored),
        )


class SparkState(Model):
    """Of all state operators of a query, as Spark counts: its rows are our entries, packed."""

    rows: int
    bytes: int = Field(description="of the memory that it uses")

    @classmethod
    def of(cls, found: tuple[int, int] | None) -> SparkState | None:
        return None if found is None else cls(rows=found[0], bytes=found[1])


class PipelineModel(Model):
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
    running: RunningModel | None = Field(description="the epoch that runs; null between epochs")
    checkpoint: str | None = Field(description="the folder or URL where its state is kept")
    spark_state: SparkState | None = Field(description="after one of its last batches; null on the engine")
    counts: Counts | None
    latest: Latest
    in_doubt: int | None = Field(description="prepared transactions of its sinks; those of a running epoch count")
    oldest_prepared_s: float | None
    dead_letters: int | None = Field(description="of its source, since the process was started")
    takes_dead_letters: bool = Field(description="whether it has sinks of dead letters: of its source, or of rows")
    store_error: PipelineError | None = Field(description="why the store's figures are missing")

    @classmethod
    def of(cls, watch: Watch) -> PipelineModel:
        control, run = watch.control, watch.control.run
        status, lag, prepared = watch.status.value, watch.lag.value, watch.held
        pipeline = control.pipeline
        ages_s = None if prepared is None else [held.age_s for each in prepared.values() for held in each]
        positions = None if status is None else status.positions
        guarantees = watch.guarantees.value or {}
        return cls(
            name=control.name,
            state=control.state.value,
            actions=[action.value for action in control.actions],
            generation=run.generation,
            epoch=status.complete.record.epoch if status and status.complete else None,
            restarts=control.totals.restarts,
            error=PipelineError.of(run.error, at(run.error_at_s)) or PipelineError.of(watch.waits_for),
            next_start_at=at(run.next_start_at_s),
            started_at=at(run.hosted.status.started_at_s),
            progress_at=at(run.hosted.status.progress_at_s),
            source=SourceModel.of(pipeline.flow.sources()),
            sinks=[PipelineSink.of(sink, guarantees.get(sink.name)) for sink in pipeline.everyone],
            edges=[EdgeModel(**asdict(each)) for each in run.hosted.traffic.edges()],
            operators=[OperatorModel.of(each) for each in run.hosted.traffic.operators()],
            positions=None if positions is None else dict(positions.items),
            lag=None if lag is None else {each.partition: each.behind for each in lag},
            behind=None if lag is None else in_all(lag),
            running=RunningModel.of(run.hosted.status.running),
            checkpoint=pipeline.checkpoint and shown_url(pipeline.checkpoint),
            spark_state=SparkState.of(run.hosted.status.spark_state),
            counts=None if status is None else Counts.of(status, run),
            latest=Latest.of(status, run),
            in_doubt=None if ages_s is None else len(ages_s),
            oldest_prepared_s=max(ages_s, default=None) if ages_s else None,
            dead_letters=None if not pipeline.dead_letters else control.totals.dead_letters,
            takes_dead_letters=takes_letters(pipeline),
            store_error=PipelineError.of(watch.status.error),
        )
