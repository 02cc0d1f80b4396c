"""Medians and ratios, as tables for people and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.kafka.contestants import GOALS
from bench.kafka.place import Spent
from bench.report import Load

__all__ = ["Result", "print_all", "save"]


@dataclass(frozen=True)
class Result:
    """One contestant, once."""

    name: str
    case: str
    rows: int
    spent: Spent

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.spent.seconds

    @property
    def cpu_us(self) -> tuple[float, float]:
        """A row, of the contestant and of the broker."""
        return self.spent.client_s / self.rows * 1e6, self.spent.broker_s / self.rows * 1e6

    def __str__(self) -> str:
        client, broker = self.cpu_us
        rate = f"{self.rows_per_s / 1e6:.3f} M rows/s"
        return f"{self.name}, {self.case}: {rate}, CPU {client:.2f} µs/row, of the broker {broker:.2f}"


def print_all(console: Console, results: Sequence[Result], rows: int) -> None:
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        grouped.setdefault((result.case, result.name), []).append(result)
    table = Table(title=f"{rows:,} rows, 4 partitions, two processes or local[2]")
    for heading in ("case", "contestant", "M rows/s", "(min-max)", "CPU µs/row", "broker's"):
        table.add_column(heading, justify="left" if heading in ("case", "contestant") else "right")
    for (case, name), ones in grouped.items():
        rates = [one.rows_per_s / 1e6 for one in ones]
        client, broker = (statistics.median(values) for values in zip(*(one.cpu_us for one in ones), strict=True))
        span = f"({min(rates):.3f}-{max(rates):.3f})"
        table.add_row(case, name, f"{statistics.median(rates):.3f}", span, f"{client:.2f}", f"{broker:.2f}")
    console.print(table)
    ratios = Table(title="ours to the peer: throughput, and the client's CPU per row")
    for heading in ("case", "ours", "peer", "throughput", "goal", "CPU"):
        ratios.add_column(heading)
    for ours, peer, case, goal in GOALS:
        if (case, ours) in grouped and (case, peer) in grouped:
            mine, theirs = grouped[case, ours], grouped[case, peer]
            ratio = _rate(mine) / _rate(theirs)
            cpu = _client_s(mine) / _client_s(theirs)
            color = "white" if goal is None else "green" if ratio >= goal else "red"
            wanted = "" if goal is None else f"{goal}"
            ratios.add_row(case, ours, peer, f"[{color}]{ratio:.2f}[/]", wanted, f"{cpu:.2f}")
    console.print(ratios)


def _rate(ones: Sequence[Result]) -> float:
    return statistics.median(one.rows_per_s for one in ones)


def _client_s(ones: Sequence[Result]) -> float:
    return statistics.median(one.spent.client_s for one in ones)


def save(path: Path, results: Sequence[Result], rows: int, load: Load) -> None:
    runs = [asdict(result) | {"rows_per_s": round(result.rows_per_s)} for result in results]
    path.write_text(json.dumps({"rows": rows, "machine": str(load), "runs": runs}, indent=2) + "\n")
