"""`onefold doctor` and `onefold plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from onefold.cli.console import AsJson, Named, print_json
from onefold.core.findings import Finding, Level, Making

if TYPE_CHECKING:
    from onefold.operate.doctor import Diagnosis, SinkDiagnosis

_MARKS = {
    Level.FINE: "[green]ok[/]",
    Level.CAUTION: "[yellow]caution[/]",
    Level.UNCHECKED: "[yellow]unchecked[/]",
    Level.PROBLEM: "[red]PROBLEM[/]",
}


def doctor(named: Named, as_json: AsJson = False) -> None:
    """What the pipeline guarantees, and whether its servers are set up for it. Changes nothing. Exit code 1 if not."""
    found = _diagnosed(named)
    if as_json:
        print_json(found.as_dict())
    else:
        print_diagnosis(Console(soft_wrap=True), found)
    if not found.holds:
        raise typer.Exit(1)


def plan(named: Named, as_json: AsJson = False) -> None:
    """What the first start of the pipeline makes or alters, by which statements. Changes nothing. Exit code 1 where a
    problem would keep the pipeline from starting."""
    found = _diagnosed(named)
    if as_json:
        problems = [finding for finding in found.findings if finding.level is Level.PROBLEM]
        print_json(
            {
                "pipeline": found.pipeline,
                "whole": found.knows_rows and not problems,
                "makes": [asdict(making) for making in found.makes],
                "problems": [{"says": f.says, "code": f.error.code if f.error else None} for f in problems],
            }
        )
    else:
        print_plan(Console(soft_wrap=True), found)
    if not found.holds:
        raise typer.Exit(1)


def _diagnosed(named: str) -> Diagnosis:
    from onefold.operate.doctor import diagnose
    from onefold.operate.doctor.runtime import examine_runtime
    from onefold.pipeline import Spark, read

    pipeline = read(named)
    begins = "starting Spark" if isinstance(pipeline.runtime, Spark) else "looking at this machine"
    with Console(stderr=True).status(begins) as shown:  # on a terminal only
        runtime, schemas = examine_runtime(pipeline)
        shown.update("asking the servers: one that is silent is waited for")
        with pipeline.in_its_words():
            return diagnose(
                pipeline.name,
                pipeline.everyone,
                store=pipeline.store_url,
                sources=pipeline.flow.sources(),
                schemas=schemas,
                require_tls=pipeline.require_tls,
                runtime=runtime,
                mechanism="barriers" if isinstance(pipeline.runtime, Spark) else pipeline.runtime.mechanism,
            )


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    told: set[str] = set()
    if diagnosis.runtime:
        _print(console, "runs on", diagnosis.runtime, told)
    _print(console, "checkpoint store", diagnosis.store, told)
    if diagnosis.source:
        _print(console, "source", diagnosis.source, told)
    for sink in diagnosis.sinks:
        _print(console, _title(sink), sink.findings, told)
        _print_promise(console, diagnosis, sink)
    console.print(f"\n[bold]pipeline {escape(diagnosis.pipeline)}[/]: {_verdict(diagnosis)}", highlight=False)


def print_plan(console: Console, diagnosis: Diagnosis) -> None:
    """What is made where, as statements that could be typed there."""
    for where, makings in groupby(sorted(diagnosis.makes, key=_places(diagnosis)), key=lambda making: making.where):
        console.print(f"[bold]{escape(where)}[/]", highlight=False)
        for making in makings:
            end = ";" if "://" in where else ""
            console.print(f"  {escape(making.statement)}{end}", highlight=False)
    for says in dict.fromkeys(finding.says for finding in diagnosis.findings if finding.level is Level.PROBLEM):
        console.print(f"{_MARKS[Level.PROBLEM]} {escape(says)}", highlight=False)
    console.print(f"\n[bold]pipeline {escape(diagnosis.pipeline)}[/]: {_summary(diagnosis)}", highlight=False)


def _places(diagnosis: Diagnosis) -> Callable[[Making], int]:
    order = list(dict.fromkeys(making.where for making in diagnosis.makes))
    return lambda making: order.index(making.where)


def _summary(diagnosis: Diagnosis) -> str:
    if not diagnosis.holds:
        return "[red]a start would end with these problems[/]; nothing was made"
    if not diagnosis.knows_rows:
        return "[yellow]the rest depends on the source's schema, which the first start finds[/]; nothing was made"
    if not diagnosis.makes:
        return "a start finds all that it needs, and makes nothing"
    return "the first start makes this; nothing was made"


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.holds:
        return "[red]the guarantee does NOT hold[/]"
    if diagnosis.is_whole and diagnosis.mechanism == "ack":
        return "[yellow]every record is there at least once[/], under these conditions"
    if diagnosis.is_whole:
        return "the guarantee holds, under these conditions"
    return "[yellow]no problem was found, and what is unchecked may yet keep the pipeline from starting[/]"


def _title(sink: SinkDiagnosis) -> str:
    if sink.guarantee is None:
        return f"sink {sink.name}"
    return f"sink {sink.name}: {sink.guarantee.mode}, {sink.guarantee.kind.value}"


def _print(console: Console, title: str, findings: Sequence[Finding], told: set[str]) -> None:
    """`told` are the problems that another part has had already: parts share servers."""
    console.print(f"[bold]{escape(title)}[/]", highlight=False)
    for finding in findings:
        says = finding.says
        if finding.error is not None and says in told:
            says = f"the same as above [{finding.error.code}]"
        told.add(finding.says)
        console.print(f"  {_MARKS[finding.level]} {escape(says)}", highlight=False)


def _print_promise(console: Console, diagnosis: Diagnosis, sink: SinkDiagnosis) -> None:
    invariants = diagnosis.invariants(sink)
    holds = [name for name, why in invariants.items() if not why]
    if sink.guarantee is None or any(finding.error for finding in sink.findings):
        return  # it does not start so, and then nothing holds
    console.print(f"  holds: {', '.join(holds) or 'none'}", highlight=False)
    for name, why in invariants.items():
        if why:
            console.print(f"  does not hold: {name} ({escape(why)})", highlight=False)
    if sink.guarantee.conditions:
        console.print("  on condition that", highlight=False)
    for condition in sink.guarantee.conditions:
        console.print(f"    - {escape(condition)}", highlight=False)
