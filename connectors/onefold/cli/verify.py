"""`onefold verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onefold.cli.arguments import AsJson, Named
from onefold.cli.verdicts import add_verdicts, print_violations
from onefold.core import ConfigError
from onefold.core.store.checkpoint_store import CheckpointStore

if TYPE_CHECKING:
    from onefold.pipeline import Pipeline
    from onefold.spark.verify.verification import Verification

__all__ = ["print_verification", "run_verification", "verify"]


def verify(
    named: Named,
    sink: Annotated[list[str] | None, typer.Option(help="Only this sink; by default each in turn.")] = None,
    key: Annotated[
        str, typer.Option(help="The columns that name a row, separated by commas, of sinks that don't say it.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the source, up to the ledgers' positions, with each sink, row by row. Exit code 1 if they differ."""
    from onefold.cli.option_values import comma_separated
    from onefold.pipeline import read

    results = run_verification(read(named), sink or (), comma_separated(key))
    is_exact = all(result.is_exact for result in results.values())
    if as_json:
        found = {name: {**asdict(result), "exact": result.is_exact} for name, result in results.items()}
        json.dump({"exact": is_exact, "sinks": found}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        for name, result in results.items():
            print_verification(Console(), result, name)
    if not is_exact:
        raise typer.Exit(1)


def run_verification(pipeline: Pipeline, only: Sequence[str], key: Sequence[str]) -> dict[str, Verification]:
    """Run the verifier in a Spark session of its own: the result of each sink, or of these, by its name."""
    from onefold.spark.scratch import temporary_folder
    from onefold.spark.session import session_of_ones_own
    from onefold.spark.verify import verification

    sinks = [verification.verifiable(sink, key) for sink in pipeline.only(only)]
    if key and not any(verification.takes_key(sink) or {*verification.key_of(sink)} == {*key} for sink in sinks):
        known = "; ".join(f"{sink.name!r} by {', '.join(verification.key_of(sink)) or 'their ids'}" for sink in sinks)
        raise ConfigError(
            "key-mismatch",
            f"--key {','.join(key)} is for sinks that do not say what names a row, and each of these says it: {known}."
            " Leave --key out",
        )
    with closing(CheckpointStore(pipeline.store_url)) as store:
        if store.look() is None:  # the verifier would make one, which knows of no epoch
            raise ConfigError(
                "store-missing",
                f"there is no checkpoint store at {store.database}, so pipeline {pipeline.name!r} runs with another"
                " one, or from another directory: verify it from there, or correct its store",
            )
    results, runtime = {}, pipeline.spark
    with (
        Console(stderr=True).status("starting Spark") as shown,  # on a terminal only
        temporary_folder("onefold-verify-") as scratch,
        session_of_ones_own("onefold verify", scratch, runtime.master, runtime.settings) as spark,
        closing(pipeline.writer()) as flow,
    ):
        for sink in sinks:
            shown.update(f"comparing {escape(sink.name)} with its source, row by row")
            results[sink.name] = verification.verify(
                spark,
                flow,
                sink,
                key if verification.takes_key(sink) else verification.key_of(sink),
            )
    return results


def print_verification(console: Console, result: Verification, name: str) -> None:
    found = result.comparison
    verdict = "exact" if result.is_exact else "[red]NOT exact[/]"
    console.print(f"{escape(name)}: {verdict}", highlight=False, soft_wrap=True)
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("rows expected", f"{found.expected:,}")
    table.add_row("rows found", f"{found.actual:,}")
    table.add_row("dead letters", f"{found.dead:,}")
    for kind in ("lost", "duplicated", "changed", "unexpected"):
        table.add_row(kind, f"{getattr(found, kind):,}")
    if found.untold:
        table.add_row("untold", f"{found.untold:,}")
    table.add_row("epochs", f"{result.epochs:,}", end_section=True)
    add_verdicts(table, result.invariants)
    console.print(table)
    for kind, keys in found.samples.items():
        console.print(f"{kind}: {'; '.join(keys)}", highlight=False, markup=False)
    for place, counts in found.partitions.items():
        said = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        console.print(f"partition {place}: {said}", highlight=False, markup=False)
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    print_violations(console, result.invariants)
