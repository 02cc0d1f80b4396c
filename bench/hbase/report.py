"""Medians and ratios, as tables for people and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.hbase.contestants import GOALS
from bench.hbase.place import Spent
from bench.report import Load

__all__ = ["print_all", "said", "save"]

Results = Mapping[str, Sequence[Spent]]


def said(name: str, spent: Spent) -> str:
    """One run in one line."""
    client, servers = spent.client_s / spent.rows * 1e6, spent.servers_s / spent.rows * 1e6
    rate = f"{spent.rows / spent.seconds:,.0f} rows/s"
    return f"{name}: {rate} of {spent.rows:,}, CPU {client:.1f} µs/row, of the servers {servers:.1f}"


def print_all(console: Console, results: Results) -> None:
    table = Table(title="an HBase and a Thrift server each for happybase and for ours; one client process")
    for heading in ("contestant", "rows", "rows/s", "(min-max)", "CPU µs/row", "servers'"):
        table.add_column(heading, justify="left" if heading == "contestant" else "right")
    for name, ones in results.items():
        rates = [one.rows / one.seconds for one in ones]
        client = statistics.median(one.client_s / one.rows * 1e6 for one in ones)
        servers = statistics.median(one.servers_s / one.rows * 1e6 for one in ones)
        span = f"({min(rates):,.0f}-{max(rates):,.0f})"
        table.add_row(name, f"{ones[0].rows:,}", f"{_rate(ones):,.0f}", span, f"{client:.1f}", f"{servers:.1f}")
    console.print(table)
    ratios = Table(title="ours to the fastest peer")
    for heading in ("ours", "peer", "throughput", "goal"):
        ratios.add_column(heading)
    for ours, peers, goal in GOALS:
        there = [peer for peer in peers if peer in results]
        if ours in results and there:
            peer = max(there, key=lambda name: _rate(results[name]))
            ratio = _rate(results[ours]) / _rate(results[peer])
            color = "white" if goal is None else "green" if ratio >= goal else "red"
            ratios.add_row(ours, peer, f"[{color}]{ratio:.2f}[/]", "" if goal is None else f"{goal}")
    console.print(ratios)


def save(path: Path, results: Results, load: Load) -> None:
    runs = [{"name": name, **asdict(one)} for name, ones in results.items() for one in ones]
    path.write_text(json.dumps({"machine": str(load), "runs": runs}, indent=2) + "\n")


def _rate(ones: Sequence[Spent]) -> float:
    return statistics.median(one.rows / one.seconds for one in ones)
