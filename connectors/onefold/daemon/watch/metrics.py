"""The daemon's metrics for Prometheus. A value that is not known is left out; it is never guessed."""

from __future__ import annotations

import time
from collections import Counter as Counted
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from onefold.daemon.pipeline_run import RunState
from onefold.daemon.watch.watch import Watch
from onefold.store.history import StoredEpoch

_DURATIONS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_COMMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class EpochMeter:
    """Counts the epochs that this process completes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_sink = ["pipeline", "sink"]
        self._rows = Counter("onefold_rows", "Rows that were written, dead letters too.", by_sink, registry=registry)
        self._bytes = Counter(
            "onefold_bytes", "Bytes of these rows, as Arrow; of the state, those stored.", by_sink, registry=registry
        )
        self._duration = Histogram(
            "onefold_epoch_duration_seconds",
            "From an epoch's opening to its completion in every sink.",
            ["pipeline"],
            buckets=_DURATIONS_S,
            registry=registry,
        )
        self._commit = Histogram(
            "onefold_epoch_commit_seconds",
            "From an epoch's decision to its completion in every sink.",
            ["pipeline"],
            buckets=_COMMITS_S,
            registry=registry,
        )

    def observe(self, epoch: StoredEpoch) -> None:
        record = epoch.record
        for part in record.manifest:
            self._rows.labels(record.pipeline, part.sink).inc(part.rows)
            self._bytes.labels(record.pipeline, part.sink).inc(part.bytes)
        if epoch.duration_s is not None:
            self._duration.labels(record.pipeline).observe(epoch.duration_s)
        if epoch.commit_s is not None:
            self._commit.labels(record.pipeline).observe(epoch.commit_s)


def registry_of(watches: Sequence[Watch], registry: CollectorRegistry) -> CollectorRegistry:
    """Adds what is true of the watched pipelines, and of this process, at the moment of each scrape."""
    disable_created_metrics()  # type: ignore[no-untyped-call] # a series more for each counter
    ProcessCollector(registry=registry)
    registry.register(_Now(watches))
    return registry


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
# What each says, and its labels beside the pipeline.
_FAMILIES: Mapping[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str, Sequence[str]]] = {
    "onefold_pipeline_state": (_GAUGE, "1 for the state that it is in.", ["state"]),
    "onefold_fenced": (_GAUGE, "1 where another process has taken the pipeline over.", []),
    "onefold_generation": (_GAUGE, "Under which this process works.", []),
    "onefold_host_memory_bytes": (_GAUGE, "Resident memory of the process that runs it.", []),
    "onefold_restarts": (_COUNTER, "Starts after failures.", []),
    "onefold_replays_skipped": (_COUNTER, "Batches that were skipped: they had been written before.", []),
    "onefold_dead_letters": (_COUNTER, "Records that could not be read, and became dead letters.", []),
    "onefold_records_skipped": (_COUNTER, "Records that could not be read, and were skipped.", []),
    "onefold_late_rows": (_COUNTER, "Rows that came too late for their windows.", []),
    "onefold_epoch_step_seconds": (_COUNTER, "The time of finished epochs, by step.", ["step"]),
    "onefold_edge_rows": (_COUNTER, "Rows that flowed from operator to operator.", ["source", "target"]),
    "onefold_edge_bytes": (_COUNTER, "Their bytes, as Arrow.", ["source", "target"]),
    "onefold_operator_busy_ratio": (
        _GAUGE,
        "The share of the workers' time that was spent in its code, lately.",
        ["operator"],
    ),
    "onefold_operator_backpressured_ratio": (
        _GAUGE,
        "The share of the time in which it waited to hand a batch on to other workers, lately.",
        ["operator"],
    ),
    "onefold_operator_state_entries": (_GAUGE, "That it keeps by key, about.", ["operator"]),
    "onefold_operator_state_bytes": (_GAUGE, "Of its last snapshot, about.", ["operator"]),
    "onefold_operator_watermark_timestamp_seconds": (
        _GAUGE,
        "The time of its watermark, in seconds since 1970.",
        ["operator"],
    ),
    "onefold_store_up": (_GAUGE, "Whether the checkpoint store answers.", []),
    "onefold_epoch": (_GAUGE, "The last complete epoch.", []),
    "onefold_epoch_age_seconds": (_GAUGE, "Since an epoch was completed.", []),
    "onefold_epoch_running_seconds": (_GAUGE, "Since the running epoch began to write; 0 without one.", []),
    "onefold_lag_records": (_GAUGE, "Records that could be read, and are not written.", ["topic", "partition"]),
    "onefold_retention_headroom_records": (
        _GAUGE,
        "How many more records retention may delete before it deletes one that is not written.",
        ["topic", "partition"],
    ),
    "onefold_behind": (
        _GAUGE,
        "What could be read of a source, and is not written: records of topics, files, tables.",
        ["source", "unit"],
    ),
    "onefold_in_doubt": (_GAUGE, "Prepared transactions, those of a running epoch too.", ["sink"]),
    "onefold_oldest_prepared_seconds": (_GAUGE, "The age of the oldest one; 0 without.", ["sink"]),
    "onefold_prepared_life_seconds": (
        _GAUGE,
        "Until the server aborts the oldest one by itself, where it does: Kafka's transactions.",
        ["sink"],
    ),
}
_Sample: TypeAlias = tuple[str, Sequence[str], float | None]  # its family, its labels, and its value if that is known


class _Now(Collector):
    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is asked before the first scrape

    def collect(self) -> Iterable[Metric]:
        found = {
            name: kind(name, says, labels=["pipeline", *labels]) for name, (kind, says, labels) in _FAMILIES.items()
        }
        for watch in self._watches:
            for samples in (_of_run, _of_graph, _of_store, _of_sources, _of_sinks):
                for name, labels, value in samples(watch):
                    if value is not None:
                        found[f"onefold_{name}"].add_metric([watch.control.name, *labels], value)
        return found.values()


def _of_run(watch: Watch) -> Iterator[_Sample]:
    control, run, totals = watch.control, watch.control.run, watch.control.totals
    state = control.state
    yield from (("pipeline_state", [each.value], state is each) for each in RunState)
    yield "fenced", [], state is RunState.FENCED
    yield "generation", [], run.generation
    yield "host_memory_bytes", [], run.hosted.memory_bytes
    yield from (("epoch_step_seconds", [step], took_s) for step, took_s in run.hosted.epochs.sums.items())
    yield "restarts", [], totals.restarts
    yield "replays_skipped", [], totals.replays
    on_errors = {source.on_error for source in control.pipeline.flow.sources()}
    yield "dead_letters", [], totals.dead_letters if "dead_letter" in on_errors else None
    yield "records_skipped", [], totals.skipped if "skip" in on_errors else None
    yield "late_rows", [], totals.late


def _of_graph(watch: Watch) -> Iterator[_Sample]:
    traffic = watch.control.run.hosted.traffic
    rows, size = Counted[tuple[str, str]](), Counted[tuple[str, str]]()
    for edge in traffic.edges():
        if edge.rows is not None and edge.bytes is not None:
            rows[edge.source, edge.target] += edge.rows
            size[edge.source, edge.target] += edge.bytes
    yield from (("edge_rows", way, count) for way, count in rows.items())
    yield from (("edge_bytes", way, count) for way, count in size.items())
    for each in traffic.operators():
        yield "operator_busy_ratio", [each.name], each.busy
        yield "operator_backpressured_ratio", [each.name], each.backpressured
        yield "operator_state_entries", [each.name], each.state_entries
        yield "operator_state_bytes", [each.name], each.state_bytes
        us = each.clock.us if each.clock is not None else None
        yield "operator_watermark_timestamp_seconds", [each.name], None if us is None else us / 1e6


def _of_store(watch: Watch) -> Iterator[_Sample]:
    status, now_s = watch.status.value, time.time()
    yield "store_up", [], watch.status.has_answer
    if status is None:
        return
    if (complete := status.complete) is not None:
        yield "epoch", [], complete.record.epoch
        if complete.completed_ms is not None:
            yield "epoch_age_seconds", [], max(0.0, now_s - complete.completed_ms / 1000)
    began_s = [epoch.opened_ms / 1000 for epoch in status.unfinished if epoch.opened_ms is not None]
    if (running := watch.control.run.hosted.status.running) is not None:  # else the store has what was begun
        began_s = [running.since_s]
    yield "epoch_running_seconds", [], max((now_s - each_s for each_s in began_s), default=0.0)


def _of_sources(watch: Watch) -> Iterator[_Sample]:
    behind = Counted[tuple[str, str]]()
    for each in watch.lag.value or ():
        behind[each.source, each.unit] += each.behind
        if each.headroom is not None:
            topic, _, partition = each.partition.rpartition("/")
            yield "lag_records", [topic, partition], each.behind
            yield "retention_headroom_records", [topic, partition], each.headroom
    yield from (("behind", source, count) for source, count in behind.items())


def _of_sinks(watch: Watch) -> Iterator[_Sample]:
    guarantees = watch.guarantees.value or {}
    for sink, held in (watch.held or {}).items():
        oldest_s = max((each.age_s for each in held), default=0.0)
        yield "in_doubt", [sink], len(held)
        yield "oldest_prepared_seconds", [sink], oldest_s
        guarantee = guarantees.get(sink)
        if guarantee is not None and guarantee.prepared_s is not None:
            yield "prepared_life_seconds", [sink], max(0.0, guarantee.prepared_s - oldest_s)
