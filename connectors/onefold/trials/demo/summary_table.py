"""One table: what happened, what came of it, where to look next."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from onefold.cli.console import add_verdicts, print_violations
from onefold.report.page import Report
from onefold.report.timeline import Incident
from onefold.spark.verify.verification import Verification
from onefold.store.history import epochs_on_record
from onefold.trials.demo.demo_settings import DemoSettings
from onefold.trials.workload.run_setup import WorkloadFailed
from onefold.trials.workload.workload_settings import Job

RECOVERED = "a batch complete again after"
GUARANTEE = {True: "exactly once", False: "at least once (protection off)"}


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

    def figures(self) -> dict[str, str]:
        return {
            "kill -9 of the pipeline": f"{self.count('pipeline', 'kill -9')}",
            "kill -9 of Postgres": f"{self.count('Postgres', 'kill -9')}",
            "zombies woken, all fenced": f"{self.zombies_fenced}",
            "replays skipped": f"{self.replays_skipped}",
            "rows/s while running (batches after a process's first)": f"{self.rows_per_s:,.0f}",
        }

    @property
    def rows_per_s(self) -> float:
        """Over the batches that were written, without the starts of processes: those are Spark's, not the data's."""
        warm = [o for o in self.outcomes if o["rows"] and o["warm"]]
        return float(sum(o["rows"] for o in warm) / (sum(o["seconds"] for o in warm) or 1.0))


def _struck(tally: DemoTally) -> list[dict[str, str]]:
    """Each strike, and how long the next batch took to be complete: a new process, its recovery, and the batch."""
    return [
        {
            "what": strike.what,
            "how": strike.how,
            "where": strike.where,
            RECOVERED: "struck again before" if seconds is None else f"{seconds:.1f} s",
        }
        for strike, seconds in tally.recoveries()
    ]


def report(
    settings: DemoSettings, tally: DemoTally, verification: Verification, job: Job, failed: WorkloadFailed | None
) -> Report:
    """The same as `print_report` prints, and the epochs. Of a run that `failed`, too."""
    epochs, notes = epochs_on_record(job.store_url(), job.pipeline)
    replays = [Incident("replays skipped", o["at"], f"{o['rows']:,} rows") for o in tally.outcomes if o["replayed"]]
    figures = [{"figure": name, "is": value} for name, value in tally.figures().items()]
    return Report(
        title="onefold demo",
        is_exact=verification.is_exact and failed is None,
        comparisons={job.table().name: verification.comparison},
        invariants=verification.invariants,
        epochs=epochs,
        notes=[GUARANTEE[settings.exactly_once], *([str(failed)] if failed else []), *notes],
        incidents=[*(Incident("strikes", s.at_s, f"{s.how} {s.what} {s.where}") for s in tally.strikes), *replays],
        tables={"Strikes": _struck(tally), "Figures": figures},
    )


def print_report(
    console: Console, settings: DemoSettings, tally: DemoTally, verification: Verification, directory: Path
) -> None:
    found = verification.comparison
    struck = Table("what", "how", "where", Column(RECOVERED, justify="right"), box=None, pad_edge=False)
    for strike in _struck(tally):
        struck.add_row(*strike.values())
    console.print(struck)
    table = Table(title=GUARANTEE[settings.exactly_once], show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("orders in the topic that belong into the table", f"{found.expected:,}")
    table.add_row("rows in the table", f"{found.actual:,}")
    table.add_row("epochs", f"{verification.epochs:,}")
    for name, figure in tally.figures().items():
        table.add_row(name, figure)
    table.add_section()
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
