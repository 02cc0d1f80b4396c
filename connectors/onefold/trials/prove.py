"""What `onefold prove` does: the whole proof with a progress bar, or one schedule again."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onefold.core import ConfigError
from onefold.core.testing import (
    DEEP,
    DEFAULT,
    INVARIANTS,
    Caught,
    Proof,
    SimulationPlan,
    catch_mutants,
    load,
    prove,
    simulate,
)
from onefold.core.testing.proof.model_mutants import MODEL_MUTANTS
from onefold.trials.heartbeat import heartbeat, said_of

__all__ = ["replay_schedule", "run_proof"]


def run_proof(console: Console, deep: bool, with_mutants: bool) -> bool:
    """Print what was run and what it showed. False if anything was violated, never reached, or survived."""
    bound = DEEP if deep else DEFAULT
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, heartbeat(console, lambda: said_of(bar)):
        proof = prove(bound, progress=_telling(bar, "schedules"))
        caught = catch_mutants(progress=_telling(bar, "mutants")) if with_mutants else []
    _print_proof(console, proof)
    of_models = {mutant.name for mutant in MODEL_MUTANTS}
    for what, some in (
        ("of the protocol", [mutant for mutant in caught if mutant.mutant not in of_models]),
        ("of the models, which show that the audit sees", [mutant for mutant in caught if mutant.mutant in of_models]),
    ):
        if some:
            _print_mutants(console, what, some)
    return proof.holds and not any(mutant.survived for mutant in caught)


def _telling(bar: Progress, what: str) -> Callable[[int, int, str], None]:
    """A task of the bar, which is gone when all of it is done."""
    task = bar.add_task(what, total=None)

    def tell(done: int, total: int, struck: str) -> None:
        bar.update(task, completed=done, total=total, description=struck, visible=done < total)

    return tell


def replay_schedule(console: Console, text: str) -> bool:
    """Run one schedule, as a failure prints it, and show every point it passes. False if it breaks an invariant."""
    try:
        plan = SimulationPlan.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "option-value", f"--replay takes a schedule as a failure of `onefold prove` printed it, not {text!r}"
        ) from error
    run = simulate(plan, load())
    struck = dict(plan.faults)
    for number, point in enumerate(run.steps, start=1):
        fault = struck.get(number)
        console.print(f"{number:4} {point}" + (f"   [red]{fault.value}[/]" if fault else ""), highlight=False)
    for text in run.violations:
        console.print(f"[red]{text}[/]", highlight=False)
    console.print("no invariant was broken" if not run.violations else f"{len(run.violations)} violations")
    return not run.violations


def _print_proof(console: Console, proof: Proof) -> None:
    violated = proof.violated
    schedules = Table(title=f"{proof.schedules:,} schedules (bound: {proof.bound})", show_header=False)
    for name, report in proof.reports.items():
        schedules.add_row(name, f"{report.schedules:,}")
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
    console.print(strikes)
    refusals = Table(
        "what happened", "how the start was refused", "times", title="refused, then cured as the error says"
    )
    for (mishap, error), count in sorted(proof.refusals.items()):
        refusals.add_row(mishap, error, f"{count:,}")
    console.print(refusals)
    reached = min(proof.branches.values())
    console.print(f"branches of protocol and recovery: {len(proof.branches)}, the least visited one {reached:,} times")
    for line in proof.never():
        console.print(f"[red]{line}: the proof shows less than it says[/]", highlight=False)
    for report in proof.reports.values():
        for failure in report.failures:
            console.print(f"[red]{'; '.join(failure.violations)}[/]", highlight=False)
            console.print(f"  {'; '.join(failure.points)}", highlight=False)
            console.print(
                f"  again: onefold prove --replay '{failure.plan.to_json()}'", highlight=False, soft_wrap=True
            )


def _print_mutants(console: Console, what: str, caught: list[Caught]) -> None:
    fallen = sum(not mutant.survived for mutant in caught)
    title = f"mutants {what}: {fallen} of {len(caught)} caught"
    table = Table("mutant", "caught by", "after schedules", "struck", title=title)
    for mutant in caught:
        verdict = "[red]nothing: it survived[/]" if mutant.survived else ", ".join(mutant.invariants)
        table.add_row(mutant.mutant, verdict, f"{mutant.schedules:,}", "; ".join(mutant.points))
    console.print(table)
