"""What `onefold prove` does: the whole proof, of protocol and engine, with a progress bar, or one schedule again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onefold.core import ConfigError
from onefold.core.testing import (
    DEEP,
    DEFAULT,
    INVARIANTS,
    MUTANTS,
    Caught,
    Proof,
    SimulationPlan,
    load,
    prove,
    simulate,
)
from onefold.core.testing.proof.model_mutants import MODEL_MUTANTS
from onefold.core.testing.proof.prove import catch, tries
from onefold.engine.testing.proof import HAPPENINGS, FlowProof, figures, mutants_of_subtasks, prove_flows
from onefold.engine.testing.schedules import FlowSchedule
from onefold.engine.testing.schedules import simulate as simulate_flow
from onefold.trials.heartbeat import heartbeat, said_of


def run_proof(console: Console, deep: bool, with_mutants: bool) -> bool:
    """Print what was run and what it showed. False if anything was violated, never reached, or survived."""
    bound, began_s = DEEP if deep else DEFAULT, _cpu_s()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, heartbeat(console, lambda: said_of(bar)):
        proof = prove(bound, progress=_telling(bar, "schedules"))
        flows = prove_flows(deep, progress=_telling(bar, "flows"))
        mutants = [*tries((*MUTANTS, *MODEL_MUTANTS)), *mutants_of_subtasks()] if with_mutants else []
        caught = catch(mutants, progress=_telling(bar, "mutants"))
    _print_proof(console, proof, flows)
    if caught:
        _print_mutants(console, caught)
    console.print(figures(proof, flows, caught), markup=False)
    console.print(f"CPU: {(_cpu_s() - began_s) / 60:.1f} minutes")
    return proof.holds and flows.holds and not any(mutant.survived for mutant in caught)


def _cpu_s() -> float:
    """Of this process, and of those that it started and that have ended."""
    return sum(os.times()[:4])


def _telling(bar: Progress, what: str) -> Callable[[int, int, str], None]:
    """A task of the bar, which is gone when all of it is done."""
    task = bar.add_task(what, total=None)

    def tell(done: int, total: int, struck: str) -> None:
        bar.update(task, completed=done, total=total, description=struck, visible=done < total)

    return tell


def replay_schedule(console: Console, text: str) -> bool:
    """Run one schedule, as a failure prints it, and show every point it passes. False if it breaks an invariant."""
    try:
        plan = FlowSchedule.from_json(text) if '"flow"' in text else SimulationPlan.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "option-value", f"--replay takes a schedule as a failure of `onefold prove` printed it, not {text!r}"
        ) from error
    if isinstance(plan, FlowSchedule):
        return _replay_flow(console, plan)
    run = simulate(plan, load())
    struck = dict(plan.faults)
    for number, point in enumerate(run.steps, start=1):
        fault = struck.get(number)
        console.print(f"{number:4} {point}" + (f"   [red]{fault.value}[/]" if fault else ""), highlight=False)
    for text in run.violations:
        console.print(f"[red]{text}[/]", highlight=False)
    console.print("no invariant was broken" if not run.violations else f"{len(run.violations)} violations")
    return not run.violations


def _replay_flow(console: Console, schedule: FlowSchedule) -> bool:
    outcome = simulate_flow(schedule.kinds, dict(schedule.script), job=schedule.job)
    for point, options in enumerate(outcome.options):
        option = outcome.taken.get(point, 0)
        console.print(f"{point:4} {options[0]}" + (f"   [red]{options[option]}[/]" if option else ""), highlight=False)
    for text in outcome.wrong:
        console.print(f"[red]{text}[/]", highlight=False)
    console.print("no invariant was broken" if not outcome.wrong else f"{len(outcome.wrong)} violations")
    return not outcome.wrong


def _print_proof(console: Console, proof: Proof, flows: FlowProof) -> None:
    violated, count = proof.violated + flows.violated, proof.schedules + flows.schedules
    schedules = Table(title=f"{count:,} schedules (bound: {proof.bound})", show_header=False)
    for name, report in proof.reports.items():
        schedules.add_row(name, f"{report.schedules:,}")
    for name, explored in flows.reports.items():
        schedules.add_row(f"flow: {name}", f"{explored.schedules:,}")
    console.print(schedules)
    invariants = Table(title="violations", show_header=False)
    for name in (*(invariant.name for invariant in INVARIANTS), "comes-to-rest"):
        invariants.add_row(name, str(violated[name]))
    console.print(invariants)
    strikes = Table(title="how often what struck", show_header=False)
    by_fault: dict[str, list[int]] = {}
    for (fault, _), count in proof.struck.items():
        by_fault.setdefault(fault.value, []).append(count)
    for name, counts in sorted(by_fault.items()):
        strikes.add_row(name, f"{sum(counts):,}", f"at {len(counts)} points")
    for name in HAPPENINGS:
        strikes.add_row(f"flow: {name}", f"{flows.taken[name]:,}", "")
    console.print(strikes)
    refusals = Table(
        "what happened", "how the start was refused", "times", title="refused, then cured as the error says"
    )
    for (mishap, error), count in sorted(proof.refusals.items()):
        refusals.add_row(mishap, error, f"{count:,}")
    console.print(refusals)
    reached = min(proof.branches.values())
    console.print(f"branches of protocol and recovery: {len(proof.branches)}, the least visited one {reached:,} times")
    for line in [*proof.never(), *flows.never()]:
        console.print(f"[red]{line}: the proof shows less than it says[/]", highlight=False)
    for report in proof.reports.values():
        for failure in report.failures:
            _print_failure(console, failure.violations, failure.points, failure.plan.to_json())
    for explored in flows.reports.values():
        for failed in explored.failed:
            _print_failure(console, failed.wrong, failed.points, failed.schedule.to_json())


def _print_failure(console: Console, violations: Sequence[str], points: Sequence[str], again: str) -> None:
    console.print(f"[red]{'; '.join(violations)}[/]", highlight=False)
    console.print(f"  {'; '.join(points)}", highlight=False)
    console.print(f"  again: onefold prove --replay '{again}'", highlight=False, soft_wrap=True)


def _print_mutants(console: Console, caught: list[Caught]) -> None:
    fallen = sum(not mutant.survived for mutant in caught)
    title = f"mutants: {fallen} of {len(caught)} caught; those of the models show that the audit sees"
    table = Table("of", "mutant", "caught by", "after schedules", "struck", title=title)
    for mutant in caught:
        verdict = "[red]nothing: it survived[/]" if mutant.survived else ", ".join(mutant.invariants)
        table.add_row(mutant.of, mutant.mutant, verdict, f"{mutant.schedules:,}", "; ".join(mutant.points))
    console.print(table)
