"""One table: what happened, what came of it, where to look next."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from onefold.cli.console import add_verdicts, print_violations
from onefold.spark.verify.verification import Verification
from onefold.trials.demo.demo_settings import DemoSettings

__all__ = ["DemoTally", "StrikeReport", "print_report"]


@dataclass(frozen=True, slots=True)
class StrikeReport:
    """What was done to what, where, and when (in seconds since 1970)."""

    what: str
    how: str
    where: str
    at_s: float


@dataclass
class DemoTally:
    """What the demo did to the pipeline, and what the pipeline's processes told of their batches."""

    strikes: list[StrikeReport] = field(default_factory=list)
    zombies_fenced: int = 0
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    def count(self, what: str, how: str) -> int:
        return sum((strike.what, strike.how) == (what, how) for strike in self.strikes)

    def recoveries(self) -> list[tuple[StrikeReport, float | None]]:
        """Each strike, and the seconds until a batch was complete again: None where another strike came first."""
        ends = [strike.at_s for strike in self.strikes[1:]] + [float("inf")]
        told = sorted(outcome["at"] for outcome in self.outcomes)
        found = []
        for strike, end in zip(self.strikes, ends, strict=False):
            after = next((at for at in told if at > strike.at_s), None)
            found.append((strike, after - strike.at_s if after is not None and after <= end else None))
        return found

    @property
    def replays_skipped(self) -> int:
        return sum(bool(outcome["replayed"]) for outcome in self.outcomes)

    @property
    def rows_per_s(self) -> float:
        """Over the batches that were written, without the starts of processes: those are Spark's, not the data's."""
        warm = [o for o in self.outcomes if o["rows"] and o["warm"]]
        return float(sum(o["rows"] for o in warm) / (sum(o["seconds"] for o in warm) or 1.0))


def _struck(tally: DemoTally) -> Table:
    """Each strike, and how long the next batch took to be complete: a new process, its recovery, and the batch."""
    table = Table(box=None, pad_edge=False)
    for name in ("what", "how", "where"):
        table.add_column(name)
    table.add_column("a batch complete again after", justify="right")
    for strike, seconds in tally.recoveries():
        table.add_row(
            strike.what, strike.how, strike.where, "struck again before" if seconds is None else f"{seconds:.1f} s"
        )
    return table


def print_report(
    console: Console, settings: DemoSettings, tally: DemoTally, verification: Verification, directory: Path
) -> None:
    found = verification.comparison
    console.print(_struck(tally))
    table = Table(
        title="exactly once" if settings.exactly_once else "at least once (protection off)", show_header=False
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("orders in the topic that belong into the table", f"{found.expected:,}")
    table.add_row("rows in the table", f"{found.actual:,}")
    table.add_row("epochs", f"{verification.epochs:,}")
    table.add_row("kill -9 of the pipeline", f"{tally.count('pipeline', 'kill -9')}")
    table.add_row("kill -9 of Postgres", f"{tally.count('Postgres', 'kill -9')}")
    table.add_row("zombies woken, all fenced", f"{tally.zombies_fenced}")
    table.add_row("replays skipped", f"{tally.replays_skipped}")
    table.add_row(
        "rows/s while running (batches after a process's first)", f"{tally.rows_per_s:,.0f}", end_section=True
    )
    counts = {
        "lost": found.lost,
        "duplicated": found.duplicated,
        "changed": found.changed,
        "unexpected": found.unexpected,
    }
    for name, count in counts.items():
        table.add_row(name, f"[{'red' if count else 'green'}]{count:,}[/]", end_section=name == "unexpected")
    add_verdicts(table, verification.invariants)
    console.print(table)
    for kind, keys in found.samples.items():
        console.print(f"{kind}, for example: {'; '.join(keys)}", highlight=False, markup=False)
    print_violations(console, verification.invariants)
    console.print(f"Logs of every process: {directory / 'logs'}", soft_wrap=True)
    console.print("To look around in the data (tables: orders, onefold_sinks.onefold_epochs):")
    console.print(f"  onefold local up --dir {directory / 'servers'}", soft_wrap=True)
    if settings.exactly_once:
        console.print("To see what the protection is for: onefold demo --guarantee at-least-once")
