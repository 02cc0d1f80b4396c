"""The daemon's metrics for Prometheus. A value that is not known is left out; it is never guessed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from onefold.daemon.pipeline_run import RunState
from onefold.daemon.watch.watch import Watch
from onefold.store.history import StoredEpoch

__all__ = ["EpochMeter", "registry_of"]

_DURATIONS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_COMMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class EpochMeter:
    """Counts the epochs that this process completes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_sink = ["pipeline", "sink"]
        self._rows = Counter("onefold_rows", "Rows that were written, dead letters too.", by_sink, registry=registry)
        self._bytes = Counter("onefold_bytes", "Bytes of these rows, as Arrow.", by_sink, registry=registry)
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


class _Now(Collector):
    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is asked before the first scrape

    def collect(self) -> Iterable[Metric]:
        for family in (self._of_runs, self._of_graph, self._of_store, self._of_source, self._of_sinks):
            yield from family()

    def _of_runs(self) -> Iterable[Metric]:
        state = GaugeMetricFamily(
            "onefold_pipeline_state", "1 for the state that it is in.", labels=["pipeline", "state"]
        )
        fenced = self._gauge("onefold_fenced", "1 where another process has taken the pipeline over.")
        generation = self._gauge("onefold_generation", "Under which this process works.")
        restarts = self._counter("onefold_restarts", "Starts after failures.")
        replays = self._counter("onefold_replays_skipped", "Batches that were skipped: they had been written before.")
        letters = self._counter("onefold_dead_letters", "Records that could not be read, and became dead letters.")
        skipped = self._counter("onefold_records_skipped", "Records that could not be read, and were skipped.")
        steps = CounterMetricFamily(
            "onefold_epoch_step_seconds", "The time of finished epochs, by step.", labels=["pipeline", "step"]
        )
        memory = self._gauge("onefold_host_memory_bytes", "Resident memory of the process that runs it.")
        for watch in self._watches:
            name, now, totals = watch.control.name, watch.control.state, watch.control.totals
            for each in RunState:
                state.add_metric([name, each.value], now is each)
            fenced.add_metric([name], now is RunState.FENCED)
            if (number := watch.control.run.generation) is not None:
                generation.add_metric([name], number)
            if (resident := watch.control.run.memory_bytes) is not None:
                memory.add_metric([name], resident)
            for step, took_s in watch.control.run.epochs.sums.items():
                steps.add_metric([name, step], took_s)
            restarts.add_metric([name], totals.restarts)
            replays.add_metric([name], totals.replays)
            on_errors = {source.on_error for source in watch.control.pipeline.flow.sources()}
            if "dead_letter" in on_errors:
                letters.add_metric([name], totals.dead_letters)
            if "skip" in on_errors:
                skipped.add_metric([name], totals.skipped)
        return state, fenced, generation, memory, restarts, replays, letters, skipped, steps

    def _of_graph(self) -> Iterable[Metric]:
        way = ["pipeline", "source", "target"]
        rows = CounterMetricFamily("onefold_edge_rows", "Rows that flowed from operator to operator.", labels=way)
        size = CounterMetricFamily("onefold_edge_bytes", "Their bytes, as Arrow.", labels=way)
        by_operator = ["pipeline", "operator"]
        busy = GaugeMetricFamily(
            "onefold_operator_busy_ratio",
            "The share of the workers' time that was spent in its code, lately.",
            labels=by_operator,
        )
        held = GaugeMetricFamily(
            "onefold_operator_backpressured_ratio",
            "The share of the time in which it waited to hand a batch on to other workers, lately.",
            labels=by_operator,
        )
        entries = GaugeMetricFamily(
            "onefold_operator_state_entries", "That it keeps by key, about.", labels=by_operator
        )
        kept = GaugeMetricFamily("onefold_operator_state_bytes", "Of its last snapshot, about.", labels=by_operator)
        for watch in self._watches:
            name, traffic = watch.control.name, watch.control.run.traffic
            sums: dict[tuple[str, str], tuple[int, int]] = {}
            for edge in traffic.edges():
                if edge.rows is not None and edge.bytes is not None:
                    known = sums.get((edge.source, edge.target), (0, 0))
                    sums[edge.source, edge.target] = known[0] + edge.rows, known[1] + edge.bytes
            for (source, target), (count, nbytes) in sums.items():
                rows.add_metric([name, source, target], count)
                size.add_metric([name, source, target], nbytes)
            for each in traffic.operators():
                values = each.busy, each.backpressured, each.state_entries, each.state_bytes
                for family, value in zip((busy, held, entries, kept), values, strict=True):
                    if value is not None:
                        family.add_metric([name, each.name], value)
        return rows, size, busy, held, entries, kept

    def _of_store(self) -> Iterable[Metric]:
        up = self._gauge("onefold_store_up", "Whether the checkpoint store answers.")
        last = self._gauge("onefold_epoch", "The last complete epoch.")
        age = self._gauge("onefold_epoch_age_seconds", "Since an epoch was completed.")
        running = self._gauge("onefold_epoch_running_seconds", "Since the running epoch began to write; 0 without one.")
        for watch in self._watches:
            name, status, now_s = watch.control.name, watch.status.value, time.time()
            up.add_metric([name], watch.status.has_answer)
            if status is None:
                continue
            complete = status.complete
            if complete is not None:
                last.add_metric([name], complete.record.epoch)
                if complete.completed_ms is not None:
                    age.add_metric([name], max(0.0, now_s - complete.completed_ms / 1000))
            began_s = [epoch.opened_ms / 1000 for epoch in status.unfinished if epoch.opened_ms is not None]
            if (running_s := watch.control.run.running_since_s) is not None:  # else the store has what was begun
                began_s = [running_s]
            running.add_metric([name], max((now_s - each_s for each_s in began_s), default=0.0))
        return up, last, age, running

    def _of_source(self) -> Iterable[Metric]:
        labels = ["pipeline", "topic", "partition"]
        behind = GaugeMetricFamily(
            "onefold_lag_records", "Records that could be read, and are not written.", labels=labels
        )
        headroom = GaugeMetricFamily(
            "onefold_retention_headroom_records",
            "How many more records retention may delete before it deletes one that is not written.",
            labels=labels,
        )
        whole = GaugeMetricFamily(
            "onefold_behind",
            "What could be read of a source, and is not written: records of topics, files, tables.",
            labels=["pipeline", "source", "unit"],
        )
        for watch in self._watches:
            found: dict[tuple[str, str], int] = {}
            for each in watch.lag.value or ():
                found[each.source, each.unit] = found.get((each.source, each.unit), 0) + each.behind
                if each.headroom is not None:
                    topic, _, partition = each.partition.rpartition("/")
                    behind.add_metric([watch.control.name, topic, partition], each.behind)
                    headroom.add_metric([watch.control.name, topic, partition], each.headroom)
            for (source, unit), number in found.items():
                whole.add_metric([watch.control.name, source, unit], number)
        return behind, headroom, whole

    def _of_sinks(self) -> Iterable[Metric]:
        labels = ["pipeline", "sink"]
        in_doubt = GaugeMetricFamily(
            "onefold_in_doubt", "Prepared transactions, those of a running epoch too.", labels=labels
        )
        oldest = GaugeMetricFamily(
            "onefold_oldest_prepared_seconds", "The age of the oldest one; 0 without.", labels=labels
        )
        life = GaugeMetricFamily(
            "onefold_prepared_life_seconds",
            "Until the server aborts the oldest one by itself, where it does: Kafka's transactions.",
            labels=labels,
        )
        for watch in self._watches:
            guarantees = watch.guarantees.value or {}
            for sink, held in (watch.held or {}).items():
                place = [watch.control.name, sink]
                oldest_s = max((each.age_s for each in held), default=0.0)
                in_doubt.add_metric(place, len(held))
                oldest.add_metric(place, oldest_s)
                guarantee = guarantees.get(sink)
                if guarantee is not None and guarantee.prepared_s is not None:
                    life.add_metric(place, max(0.0, guarantee.prepared_s - oldest_s))
        return in_doubt, oldest, life

    @staticmethod
    def _gauge(name: str, says: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, says, labels=["pipeline"])

    @staticmethod
    def _counter(name: str, says: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, says, labels=["pipeline"])
