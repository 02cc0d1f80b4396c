"""Medians and ratios, as tables for people and as JSON."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contestants import CONTESTANTS, Run
from bench.micro import BatchTimes

__all__ = ["Load", "print_micro", "print_ratios", "print_throughput", "save"]

# Ours, the peer, and how many times its throughput ours has to reach.
_GOALS = (
    ("writer", "spark_jdbc", 3.0),
    ("writer", "spark_upsert", 5.0),
    ("writer", "unprotected", 0.95),
    ("writer", "loop", 0.72),
    ("writer_staged", "unprotected", None),
    ("flow", "spark_jdbc", 2.5),
    ("flow", "spark_upsert", 4.0),
    ("flow", "loop", 1.4),
    ("flow", "flow_uncompiled", None),
    ("flow_uncompiled", "loop", 0.72),
    ("flow_staged", "flow", None),
)


def _medians(runs: Sequence[Run], what: str = "rows_per_s") -> dict[tuple[str, int | None], float]:
    by: dict[tuple[str, int | None], list[float]] = {}
    for run in runs:
        by.setdefault((run.contestant, run.rows_per_batch), []).append(getattr(run, what))
    return {key: statistics.median(values) for key, values in by.items()}


def _batching(rows_per_batch: int | None) -> str:
    return "one batch" if rows_per_batch is None else f"batches of {rows_per_batch:,}"


def _sizes(runs: Sequence[Run]) -> list[int | None]:
    return list(dict.fromkeys(run.rows_per_batch for run in runs))


def print_throughput(console: Console, runs: Sequence[Run], absent: dict[str, str]) -> None:
    """Rows per second: of the whole run (and of the slowest and the fastest one), and of its batches without the start
    of the query. CPU time per row is what other load on the machine changes least.
    """
    for size in _sizes(runs):
        table = Table(title=f"{_batching(size)}: {runs[0].rows:,} events")
        table.add_column("contestant", no_wrap=True)
        for heading in ("M rows/s", "(min-max)", "in batches", "CPU µs/row", "client", "Postgres", "Kafka"):
            table.add_column(heading, justify="right")
        for contestant in CONTESTANTS:
            mine = [run for run in runs if run.contestant == contestant.name and run.rows_per_batch == size]
            if not mine:
                if contestant.name in absent:
                    table.add_row(contestant.what, "not available")
                continue
            rates = [run.rows_per_s / 1e6 for run in mine]
            parts = [
                statistics.median(getattr(run.used, part) / run.rows * 1e6 for run in mine)
                for part in ("client_s", "postgres_s", "kafka_s")
            ]
            table.add_row(
                contestant.what,
                f"{statistics.median(rates):.3f}",
                f"({min(rates):.3f}-{max(rates):.3f})",
                f"{statistics.median(run.rows_per_s_in_batches / 1e6 for run in mine):.3f}",
                f"{sum(parts):.2f}",
                *(f"{part:.2f}" for part in parts),
            )
        console.print(table)
    for name, reason in absent.items():
        console.print(f"{name}: not available: {reason}")


def print_ratios(console: Console, runs: Sequence[Run]) -> None:
    """Ours to each peer, median to median, in the same batching: of whole runs, and in brackets of batches alone."""
    whole, batches, sizes = _medians(runs), _medians(runs, "rows_per_s_in_batches"), _sizes(runs)
    table = Table(title="ours to the peer: whole runs (batches alone)")
    for heading in ("ours", "peer", *map(_batching, sizes), "goal"):
        table.add_column(heading, justify="left" if heading in ("ours", "peer") else "right")
    for ours, peer, goal in _GOALS:
        cells = []
        for size in sizes:
            if (ours, size) not in whole or (peer, size) not in whole:
                continue
            ratio = whole[ours, size] / whole[peer, size]
            color = "white" if goal is None else "green" if ratio >= goal else "red"
            cells.append(f"[{color}]{ratio:.2f}[/] ({batches[ours, size] / batches[peer, size]:.2f})")
        if cells:
            table.add_row(ours, peer, *cells, "" if goal is None else f"{goal}")
    if table.row_count:
        console.print(table)


def print_micro(console: Console, times: Sequence[BatchTimes], rows_per_batch: int) -> None:
    """Milliseconds per micro-batch; `addBatch` is the part of the sink (and of reading, which Spark does lazily)."""
    table = Table(title=f"micro-batches of {rows_per_batch:,} rows, milliseconds")
    table.add_column("contestant")
    for heading in ("median", "p95", "of which addBatch", "median over noop"):
        table.add_column(heading, justify="right")
    pooled: dict[str, list[BatchTimes]] = {}
    for one in times:
        pooled.setdefault(one.contestant, []).append(one)
    all_of = {
        name: BatchTimes(name, sum((o.batch_ms for o in ones), ()), sum((o.write_ms for o in ones), ()))
        for name, ones in pooled.items()
    }
    for name, one in all_of.items():
        noop = all_of.get("noop")
        over = f"{one.median_ms - noop.median_ms:+.0f}" if noop and name != "noop" else ""
        table.add_row(name, f"{one.median_ms:.0f}", f"{one.p95_ms:.0f}", f"{statistics.median(one.write_ms):.0f}", over)
    console.print(table)


class Load:
    """What else the machine did: its load average before and after."""

    def __init__(self) -> None:
        self.before = os.getloadavg()

    def __str__(self) -> str:
        before, after = self.before[0], os.getloadavg()[0]
        return f"{os.cpu_count()} cores; load average {before:.1f} before, {after:.1f} after (this run's own included)"


def save(path: Path, runs: Sequence[Run], times: Sequence[BatchTimes], absent: dict[str, str], load: Load) -> None:
    medians = _medians(runs)
    answer: dict[str, Any] = {
        "machine": str(load),
        "median_rows_per_s": [
            {"contestant": name, "rows_per_batch": size, "rows_per_s": round(rate)}
            for (name, size), rate in medians.items()
        ],
        "ratios": [
            {"ours": ours, "peer": peer, "rows_per_batch": size, "ratio": medians[ours, size] / medians[peer, size]}
            for ours, peer, _ in _GOALS
            for size in _sizes(runs)
            if (ours, size) in medians and (peer, size) in medians
        ],
        "runs": [asdict(run) | {"rows_per_s": round(run.rows_per_s)} for run in runs],
        "micro_batches": [asdict(one) | {"median_ms": one.median_ms, "p95_ms": one.p95_ms} for one in times],
        "not_available": absent,
    }
    path.write_text(json.dumps(answer, indent=2) + "\n")
