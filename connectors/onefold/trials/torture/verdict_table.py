"""The table: fault kinds so far, and the verdicts round by round."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table

from onefold.cli.console import add_verdicts, print_violations
from onefold.core import EpochRecord
from onefold.report.page import Report
from onefold.report.timeline import Incident
from onefold.store.history import StoredEpoch, epochs_on_record
from onefold.trials.torture.audit import Audit
from onefold.trials.torture.torture_settings import PIPELINE, TortureSettings


class TortureTally:
    """What has happened so far."""

    def __init__(self, settings: TortureSettings) -> None:
        self.settings = settings
        self.faults: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.audits: list[Audit] = []
        self.round = 1
        self.doing = "starting"

    @property
    def total(self) -> int:
        return self.faults.total()

    def told(self) -> str:
        """Where the run is, on one line."""
        return f"round {self.round}: {self.doing}; faults: {self.total} of {self.goal}"

    @property
    def goal(self) -> str:
        return f"those of {self.settings.minutes:g} min" if self.settings.minutes else f"{self.settings.faults}"

    def verdicts(self) -> dict[str, list[str]]:
        """The violations of each invariant in all rounds."""
        every: dict[str, list[str]] = {}
        for audit in self.audits:
            for name, found in audit.verdicts.items():
                every.setdefault(name, []).extend(f"round {audit.round}: {text}" for text in found)
        return every

    @property
    def title(self) -> str:
        """What goes where, on what."""
        settings = self.settings
        bad_rows = f" with bad rows into a {settings.dead_letters}" if settings.bad_rows else ""
        by = f"{'' if settings.alignment == 'aligned' else f'{settings.alignment} '}{settings.mechanism}"
        where = f"the engine, {by}, state in {settings.state}" if settings.on_engine else settings.master
        where = "both runtimes, moving" if settings.moves else where
        where += ", servers in containers" if settings.in_containers else ""
        return f"{settings.mode}{bad_rows}, {' beside '.join(settings.deliveries)} on {where}, seed {settings.seed}"

    @property
    def is_exact(self) -> bool:
        return bool(self.audits) and all(audit.is_exact for audit in self.audits)


def live_table(tally: TortureTally) -> Group:
    """What is shown while it runs."""
    last = tally.audits[-1] if tally.audits else None
    table = Table(title=f"round {tally.round}: {tally.doing}", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("faults", f"{tally.total} of {tally.goal}", end_section=True)
    for kind, count in sorted(tally.faults.items()):
        table.add_row(f"  {kind}", f"{count}")
    table.add_section()
    table.add_row("audits", f"{len(tally.audits)}")
    if last is not None:
        add_verdicts(table, last.verdicts)
    return Group(table)


def print_report(
    console: Console,
    tally: TortureTally,
    exits: Counter[str],
    complaints: Sequence[str],
    retries: Mapping[str, int],
    seconds: float,
    directory: Path,
) -> None:
    settings = tally.settings
    faults = Table(title=tally.title)
    faults.add_column("fault", style="bold")
    faults.add_column("struck", justify="right")
    faults.add_column("missed", justify="right")
    for kind in sorted(tally.faults | tally.missed):
        faults.add_row(kind, f"{tally.faults[kind]}", f"{tally.missed[kind] or ''}")
    faults.add_section()
    missed = f"{tally.missed.total() or ''}"
    faults.add_row(f"{len(tally.faults)} kinds in {seconds / 60:.1f} min", f"{tally.total}", missed)
    console.print(faults)

    table = Table(title="held against the source, the store and the destinations after each round", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("rounds audited", f"{len(tally.audits)}")
    for name, count in [*sorted(exits.items()), *retries.items()]:
        table.add_row(f"ended: {name}" if name in exits else name, f"{count}")
    table.add_section()
    if tally.audits:
        last = tally.audits[-1].figures()
        table.add_row("records due, at the end", f"{last['records']:,}")
        table.add_row("rows written, at the end", f"{last['rows']:,}")
        if settings.bad_rows:
            table.add_row("dead letters, at the end", f"{last['dead']:,}")
        if last["observations"]:
            table.add_row("snapshots that a reader took", f"{last['observations']:,}")
        for name in ("lost", "duplicated", "changed", "unexpected", "in_doubt", "stage_rows", "unnamed_files"):
            total = sum(audit.figures()[name] for audit in tally.audits)
            table.add_row(name.replace("_", " "), f"[{'red' if total else 'green'}]{total}[/]")
        table.add_section()
        every = tally.verdicts()
        add_verdicts(table, every)
        console.print(table)
        print_violations(console, every)
    for complaint in complaints:
        console.print(f"unexpected: {complaint}", highlight=False, markup=False)
    console.print(f"The history is {directory / 'history.jsonl'}, the logs of every process {directory / 'logs'}.")


def report(
    tally: TortureTally, exact: bool, complaints: Sequence[str], seen: Iterable[EpochRecord], store: str, history: Path
) -> Report:
    """The same as `print_report` prints; of the sinks, what the last round found. `seen` are epochs that the run saw:
    the store has pruned old ones since, and nobody knows how long these took."""
    stored, notes = epochs_on_record(store, PIPELINE)
    epochs = {record.epoch: StoredEpoch(record, 0, None, None, None, None) for record in seen}
    epochs |= {epoch.record.epoch: epoch for epoch in stored}
    kinds = sorted(tally.faults | tally.missed)
    return Report(
        title="onefold torture",
        is_exact=exact,
        comparisons=tally.audits[-1].comparisons if tally.audits else {},
        invariants=tally.verdicts(),
        epochs=[epochs[number] for number in sorted(epochs)],
        incidents=_incidents(history),
        tables={
            "Faults": [
                {"fault": kind, "struck": f"{tally.faults[kind]}", "missed": f"{tally.missed[kind]}"} for kind in kinds
            ],
            "Rounds": [
                {"round": f"{audit.round}"} | {name.replace("_", " "): f"{n:,}" for name, n in audit.figures().items()}
                for audit in tally.audits
            ],
        },
        notes=[tally.title, *(f"unexpected: {complaint}" for complaint in complaints), *notes],
    )


def _incidents(history: Path) -> list[Incident]:
    """Faults, and processes of the pipeline that ended."""
    found = []
    for line in history.read_text().splitlines():
        event = json.loads(line)
        at_s = datetime.fromisoformat(event["time"]).timestamp()
        if event["event"] == "fault":
            found.append(Incident("faults", at_s, f"{event['kind']}: {event['target']}"))
        elif event["event"] == "exit":
            text = f"process {event['process']} ended with status {event['status']}"
            found.append(Incident("ends of processes", at_s, text))
    return found
