"""`onefold verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onefold.cli.console import AsHtml, AsJson, Named, add_verdicts, comma_separated, print_json, print_violations
from onefold.core import ConfigError, Sink

if TYPE_CHECKING:
    from onefold.pipeline import Pipeline
    from onefold.report.page import Report
    from onefold.spark.verify.comparing.wrong_rows import WrongRows
    from onefold.spark.verify.verification import Verification


def verify(
    named: Named,
    sink: Annotated[list[str] | None, typer.Option(help="Only this sink; by default each in turn.")] = None,
    key: Annotated[
        str, typer.Option(help="The columns that name a row, separated by commas, of sinks that don't say it.")
    ] = "",
    expect: Annotated[
        str | None, typer.Option(help="What the sink is to have: a SELECT over the view `source`, or a file.sql.")
    ] = None,
    without_ledger: Annotated[
        bool, typer.Option(help="Somebody else has written it: all that the sources have now is expected.")
    ] = False,
    until: Annotated[
        list[str] | None,
        typer.Option(
            help="Without a ledger: of this partition what is before, as orders/0=1200; group=NAME: what that consumer"
            " group has committed."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Without a ledger: what this pipeline makes of its source, in the sink's place.")
    ] = None,
    as_json: AsJson = False,
    html: AsHtml = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what would mend it, which you may run."),
    ] = None,
) -> None:
    """Compare the source, up to the ledgers' positions, with each sink, row by row. Exit code 1 if they differ, 2
    if nobody can tell of some rows any more."""
    from onefold.operate.verify import verify
    from onefold.pipeline import read
    from onefold.report.page import page
    from onefold.report.report_file import ReportFile

    if until and not without_ledger:
        raise ConfigError("options-conflict", "--until is for --without-ledger: else the ledger says where to end")
    if against and not without_ledger:
        raise ConfigError("options-conflict", "--against is for --without-ledger: what is compared has none")
    if plan and against:
        raise ConfigError("options-conflict", "--plan is for what a sink has, and --against asks none: leave one out")
    if plan and html and plan.resolve() == html.resolve():
        raise ConfigError("options-conflict", f"--plan and --html both name {plan}: name two files")
    query = "" if expect is None else _query(expect)
    file, mends = ReportFile(html) if html else None, ReportFile(plan, "plan") if plan else None
    pipeline, copy = read(named), None if against is None else read(against)
    ends = _ends(pipeline, until or ()) if without_ledger else None
    wrong: dict[Sink, WrongRows] | None = {} if mends is not None else None
    with Console(stderr=True).status("starting Spark") as status:  # on a terminal only

        def comparing(name: str) -> None:
            status.update(f"comparing {escape(name)} with its source, row by row")

        results = verify(pipeline, sink or (), comma_separated(key), comparing, query, ends, copy, wrong)
    is_exact = all(result.is_exact for result in results.values())
    if as_json:
        found = {
            name: asdict(each) | {"exact": each.is_exact and not each.may_double} for name, each in results.items()
        }
        print_json({"exact": all(each["exact"] for each in found.values()), "sinks": found})
    else:
        for name, result in results.items():
            print_verification(Console(emoji=False), result, name)
    if file is not None:
        typer.echo(file.write(page(_report(pipeline, results, has_ledger=ends is None))), err=True)
    if mends is not None and wrong is not None:
        from onefold.spark.verify.mending.plan import plan_text

        typer.echo(mends.write(plan_text(named, pipeline.name, pipeline.sinks, wrong)), err=True)
    if not is_exact:
        raise typer.Exit(1)
    if any(result.comparison.untold for result in results.values()):
        raise typer.Exit(2)


def _ends(pipeline: Pipeline, said: Sequence[str]) -> dict[str, int]:
    from onefold.operate.beginning import group_end

    ends: dict[str, int] = {}
    for text in said:
        name, _, value = text.partition("=")
        if name == "group" and value:
            ends |= {partition: int(at) for partition, at in group_end(pipeline, value).items}
        elif name and value.isdecimal():
            ends[name] = int(value)
        else:
            form = "a partition and an offset, as orders/0=1200, or a consumer group, as group=NAME"
            raise ConfigError("option-value", f"--until is {form}, not {text!r}")
    return ends


def _query(said: str) -> str:
    """The query itself, or what is in the file of that name."""
    try:
        found = Path(said).read_text() if said.endswith(".sql") else said
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("option-value", f"--expect {said} cannot be read: {error}") from None
    if not found.strip():
        raise ConfigError("option-value", f"--expect {said} is empty: it is to say what the sink has to have")
    return found


def _report(pipeline: Pipeline, results: Mapping[str, Verification], *, has_ledger: bool) -> Report:
    from onefold.operate.lags import lag_after
    from onefold.report.page import Report
    from onefold.store.history import epochs_on_record

    epochs, notes = epochs_on_record(pipeline.store_url, pipeline.name) if has_ledger else ((), ())
    invariants: dict[str, dict[str, None]] = {}
    for each in results.values():
        for name, texts in each.invariants.items():  # those of the epochs are each sink's
            invariants.setdefault(name, {}).update(dict.fromkeys(texts))
    lags = [
        {"sink": name, "behind": lag_after(pipeline, each.positions)} for name, each in results.items() if has_ledger
    ]
    return Report(
        title=f"onefold verify: {pipeline.name}",
        is_exact=all(each.is_exact for each in results.values()),
        comparisons={name: each.comparison for name, each in results.items()},
        invariants={name: [*texts] for name, texts in invariants.items()},
        epochs=epochs,
        tables={"Lag": lags} if lags else {},
        notes=[
            *notes,
            *(f"{name}: {_exact_but(n)}" for name, each in results.items() if (n := each.comparison.untold)),
        ],
    )


def _exact_but(untold: int) -> str:
    return f"exact, but of {untold:,} rows nobody can tell any more" if untold else "exact"


def print_verification(console: Console, result: Verification, name: str) -> None:
    found = result.comparison
    once = f"nothing is lost; at least once, by {result.may_double}" if result.may_double else _exact_but(found.untold)
    verdict = once if result.is_exact else "[red]NOT exact[/]"
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
