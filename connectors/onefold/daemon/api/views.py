"""The API's answers, made of a pipeline's run, and of what was last seen of its store and its servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from onefold.core import EpochState, Guarantee, Positions, Sink
from onefold.core.source import Source
from onefold.daemon.api.models import (
    CommittableModel,
    Counts,
    EdgeModel,
    ElementModel,
    EpochDetail,
    EpochModel,
    EpochsFailed,
    EpochSink,
    GraphModel,
    LagPoint,
    Latest,
    LogLineModel,
    Offsets,
    OperatorModel,
    PipelineError,
    PipelineModel,
    PipelineSink,
    RangeModel,
    RecoveryModel,
    SavepointModel,
    SourceModel,
    StepsModel,
)
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.messages import LogLine
from onefold.daemon.hosting.traffic_rates import EdgeRate, OperatorLoad, TrafficRates
from onefold.daemon.pipeline_run import Run
from onefold.daemon.watch.watch import Watch
from onefold.flow.drawing import drawn
from onefold.operate.lags import in_all
from onefold.operate.letters.letter import takes_letters
from onefold.store.history import PipelineStatus, StoredEpoch
from onefold.store.savepoint_notes import SavepointNote

__all__ = ["elements_of", "epoch_detail", "epoch_view", "graph_view", "lag_point", "log_line", "pipeline_view"]

_SINK_STATES: dict[EpochState, Literal["acknowledged", "pending", "given_up", "damaged"]] = {
    EpochState.COMPLETE: "acknowledged",
    EpochState.OPEN: "pending",
    EpochState.DECIDED: "pending",  # each sink acknowledges by itself: the store knows when all have
    EpochState.GIVEN_UP: "given_up",
    EpochState.DAMAGED: "damaged",
}


_KINDS = {"KafkaSource": "kafka", "FileSource": "files", "PostgresSource": "postgres", "HBaseSource": "hbase"}


def pipeline_view(watch: Watch) -> PipelineModel:
    control, run = watch.control, watch.control.run
    status, lag, prepared = watch.status.value, watch.lag.value, watch.held
    pipeline = control.pipeline
    ages_s = None if prepared is None else [held.age_s for each in prepared.values() for held in each]
    positions = None if status is None else status.positions
    store_error = watch.status.error
    guarantees = watch.guarantees.value or {}
    return PipelineModel(
        name=control.name,
        state=control.state.value,
        actions=[action.value for action in control.actions],
        generation=run.generation,
        epoch=status.complete.record.epoch if status and status.complete else None,
        restarts=control.totals.restarts,
        error=_error_of(watch),
        next_start_at=_at(run.next_start_at_s),
        started_at=_at(run.started_at_s),
        progress_at=_at(run.progress_at_s),
        source=_source_view(pipeline.flow.sources()),
        sinks=[_sink_view(sink, guarantees.get(sink.name)) for sink in pipeline.everyone],
        edges=[EdgeModel(**asdict(each)) for each in run.traffic.edges()],
        operators=[OperatorModel(**asdict(each)) for each in run.traffic.operators()],
        positions=None if positions is None else _offsets(positions),
        lag=None if lag is None else {each.partition: each.behind for each in lag},
        behind=None if lag is None else in_all(lag),
        counts=None if status is None else _counts(status, run),
        latest=_latest(status, run),
        in_doubt=None if ages_s is None else len(ages_s),
        oldest_prepared_s=max(ages_s, default=None) if ages_s else None,
        dead_letters=None if not pipeline.dead_letters else control.totals.dead_letters,
        takes_dead_letters=takes_letters(pipeline),
        store_error=None
        if store_error is None
        else PipelineError(code=store_error.code, message=store_error.message, at=None),
    )


def graph_view(traffic: TrafficRates) -> GraphModel:
    drawing = traffic.drawing
    if drawing is None:
        return GraphModel(svg=None)
    boxes = [
        replace(box, figures=tuple(_figures(each)))
        for box, each in zip(drawing.boxes, traffic.operators(), strict=True)
    ]
    ways = [
        replace(way, label=", ".join(filter(None, [way.label.removeprefix("by "), _rate(each)])))
        for way, each in zip(drawing.ways, traffic.edges(), strict=True)
    ]
    return GraphModel(svg=elements_of(drawn("", boxes, ways, (), is_styled=False)))


def elements_of(svg: str) -> ElementModel:
    """A picture of our own."""
    return _element(ElementTree.fromstring(svg))


def _element(found: Element) -> ElementModel:
    texts = [found.text, *(child.tail for child in found)]
    children: list[ElementModel | str] = []
    for text, child in zip(texts, [*found, None], strict=True):
        children += [text] if text and not text.isspace() else []
        children += [] if child is None else [_element(child)]
    attributes = {name: value for name, value in found.attrib.items() if not name.startswith("{")}  # but xml:space
    return ElementModel(tag=found.tag.rpartition("}")[2], attributes=attributes, children=children)


def _figures(load: OperatorLoad) -> Iterator[str]:
    """As wide as they ever are, so that a picture does not move with them."""
    shares = {"busy": load.busy, "backpressured": load.backpressured}
    if known := [f"{share:4.0%} {name}" for name, share in shares.items() if share is not None]:
        yield ", ".join(known)
    if load.state_entries is not None and load.state_bytes is not None:
        yield f"{load.state_entries:,} entries, {load.state_bytes / 1e6:,.1f} MB"


def _rate(edge: EdgeRate) -> str:
    if edge.rows_per_s is None or edge.bytes_per_s is None:
        return ""
    return f"{edge.rows_per_s:,.0f} rows/s, {edge.bytes_per_s / 1e6:,.1f} MB/s"


def lag_point(at_s: float, behind: dict[str, int]) -> LagPoint:
    return LagPoint(at=datetime.fromtimestamp(at_s, UTC), behind=behind)


def log_line(line: LogLine) -> LogLineModel:
    return LogLineModel(at=datetime.fromtimestamp(line.at_s, UTC), level=line.level, message=line.message)


def _source_view(sources: Sequence[Source]) -> SourceModel:
    kinds = sorted({_KINDS.get(type(source).__name__, type(source).__name__) for source in sources})
    return SourceModel(kind=",".join(kinds), name=", ".join(source.name for source in sources))


def epoch_view(epoch: StoredEpoch, times: EpochTimes) -> EpochModel:
    record = epoch.record
    is_complete = record.state is EpochState.COMPLETE
    by_sink = {name: [c for c in record.manifest if c.sink == name] for name in record.sinks}
    completed_at = _at_ms(epoch.completed_ms)
    steps = times.of(record.epoch) if is_complete else None
    return EpochModel(
        epoch=record.epoch,
        generation=record.generation,
        state=record.state.value,
        opened_at=_at_ms(epoch.opened_ms),
        decided_at=_at_ms(epoch.decided_ms),
        completed_at=completed_at,
        duration_s=epoch.duration_s,
        commit_s=epoch.commit_s,
        steps=None if steps is None else StepsModel(**asdict(steps)),
        rows=record.rows,
        bytes=epoch.bytes,
        range=RangeModel(start=_offsets(record.range.start), end=_offsets(record.range.end)),
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
    )


def epoch_detail(epoch: StoredEpoch, times: EpochTimes) -> EpochDetail:
    record = epoch.record
    manifest = [
        CommittableModel(
            sink=c.sink, kind=c.kind.value, handle=c.handle, generation=c.generation, rows=c.rows, bytes=c.bytes
        )
        for c in record.manifest
    ]
    return EpochDetail(
        **epoch_view(epoch, times).model_dump(), query_id=record.query_id, batch_id=record.batch_id, manifest=manifest
    )


def _error_of(watch: Watch) -> PipelineError | None:
    run = watch.control.run
    if (error := run.error) is not None:
        return PipelineError(code=error.code, message=error.message, at=_at(run.error_at_s))
    waited = watch.waits_for
    return None if waited is None else PipelineError(code=waited.code, message=waited.message, at=None)


def _sink_view(sink: Sink, guarantee: Guarantee | None) -> PipelineSink:
    kind = type(sink).__name__.removesuffix("Sink").lower()
    if guarantee is None:
        return PipelineSink(name=sink.name, kind=kind, mode=None, promise=None, atomic=None, reason=None)
    return PipelineSink(
        name=sink.name,
        kind=kind,
        mode=guarantee.mode,
        promise="at-least-once" if guarantee.mode == "at_least_once" else "exactly-once",
        atomic=guarantee.atomic_epoch,
        reason="; ".join(guarantee.conditions) or None,
    )


def _counts(status: PipelineStatus, run: Run) -> Counts:
    """An epoch that runs is in its process's memory, and in the store with its decision."""
    counts = status.counts
    stored = counts.get(EpochState.OPEN, 0) + counts.get(EpochState.DECIDED, 0)
    in_memory = int(run.running_since_s is not None and not stored)
    return Counts(
        triggered=sum(counts.values()) + in_memory,
        in_progress=stored + in_memory,
        completed=counts.get(EpochState.COMPLETE, 0),
        failed=counts.get(EpochState.GIVEN_UP, 0) + counts.get(EpochState.DAMAGED, 0),
        restored=max(0, status.starts - 1),
    )


def _latest(status: PipelineStatus | None, run: Run) -> Latest:
    failed = None if status is None else status.failed
    recovered = run.recovered
    return Latest(
        completed=epoch_view(status.complete, run.epochs) if status and status.complete else None,
        failed=None
        if failed is None
        else EpochsFailed(
            epoch=failed.record.epoch,
            state=failed.record.state.value,
            at=_at_ms(failed.decided_ms or failed.opened_ms),
            error=failed.error,
        ),
        savepoint=None if status is None else _savepoint(status.savepoint),
        restore=None
        if recovered is None
        else RecoveryModel(
            generation=recovered.generation,
            at=_at(run.started_at_s),
            epochs_finished=recovered.finished,
        ),
        savepoint_restored=None if status is None else _savepoint(status.restored),
    )


def _savepoint(note: SavepointNote | None) -> SavepointModel | None:
    if note is None:
        return None
    return SavepointModel(name=note.name, epoch=note.epoch, at=datetime.fromtimestamp(note.at_ms / 1000, UTC))


def _offsets(positions: Positions) -> Offsets:
    return dict(positions.items)


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _at_ms(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
