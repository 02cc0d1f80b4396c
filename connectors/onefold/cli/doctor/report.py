"""What `onefold doctor` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from onefold.core.findings import Finding, Level
from onefold.doctor import Diagnosis, SinkDiagnosis

__all__ = ["print_diagnosis"]

_MARKS = {
    Level.FINE: "[green]ok[/]",
    Level.CAUTION: "[yellow]caution[/]",
    Level.UNCHECKED: "[yellow]unchecked[/]",
    Level.PROBLEM: "[red]PROBLEM[/]",
}


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    if diagnosis.runtime:
        _print(console, "runs on", diagnosis.runtime)
    _print(console, "checkpoint store", diagnosis.store)
    if diagnosis.source:
        _print(console, "source", diagnosis.source)
    for sink in diagnosis.sinks:
        _print(console, _title(sink), sink.findings)
        _print_promise(console, diagnosis, sink)
    console.print(f"\n[bold]pipeline {escape(diagnosis.pipeline)}[/]: {_verdict(diagnosis)}", highlight=False)


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.holds:
        return "[red]the guarantee does NOT hold[/]"
    if diagnosis.is_whole:
        return "the guarantee holds, under these conditions"
    return "[yellow]no problem was found, and what is unchecked may yet keep the pipeline from starting[/]"


def _title(sink: SinkDiagnosis) -> str:
    if sink.guarantee is None:
        return f"sink {sink.name}"
    return f"sink {sink.name}: {sink.guarantee.mode}, {sink.guarantee.kind.value}"


def _print(console: Console, title: str, findings: Sequence[Finding]) -> None:
    console.print(f"[bold]{escape(title)}[/]", highlight=False)
    for finding in findings:
        console.print(f"  {_MARKS[finding.level]} {escape(finding.says)}", highlight=False)


def _print_promise(console: Console, diagnosis: Diagnosis, sink: SinkDiagnosis) -> None:
    invariants = diagnosis.invariants(sink)
    holds = [name for name, why in invariants.items() if not why]
    if sink.guarantee is None:
        return
    console.print(f"  holds: {', '.join(holds) or 'none'}", highlight=False)
    for name, why in invariants.items():
        if why:
            console.print(f"  does not hold: {name} ({escape(why)})", highlight=False)
    if sink.guarantee.conditions:
        console.print("  on condition that", highlight=False)
    for condition in sink.guarantee.conditions:
        console.print(f"    - {escape(condition)}", highlight=False)
