"""`onefold recover`."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from onefold.cli.console import Named, TakeOver, Yes, confirm, say
from onefold.core import ConfigError

_WAYS = {
    "adopt_ledger": "the destinations are believed instead of the checkpoint store",
    "accept_damage": "epoch {} is taken for complete: its missing rows must have been written by hand",
    "accept_targets": "it goes on with the tables and topics that are there now, without the rows that they had",
}


def recover(
    named: Named,
    adopt_ledger: Annotated[
        bool, typer.Option("--adopt-ledger", help="Believe the destinations: the store was lost, or is an older copy.")
    ] = False,
    accept_damage: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="EPOCH", help="Take this damaged epoch for complete: you wrote its missing rows by hand."
        ),
    ] = None,
    accept_targets: Annotated[
        bool,
        typer.Option("--accept-targets", help="Go on with tables and topics that were dropped, or made anew."),
    ] = False,
    take_over: TakeOver = False,
    yes: Yes = False,
) -> None:
    """Finish or undo what a pipeline left, without running it; with one of the ways out that an error names, which it
    explains and asks about. The next start goes on from there."""
    from onefold.operate.stopped import StoppedPipeline
    from onefold.pipeline import read
    from onefold.store.job.session import resolved

    given = {"adopt_ledger": adopt_ledger, "accept_damage": accept_damage, "accept_targets": accept_targets}
    ways: dict[str, Any] = {way: value for way, value in given.items() if value not in (False, None)}
    if len(ways) > 1:
        raise ConfigError("options-conflict", "give one way out at a time: the one that the error names")
    pipeline = read(named, is_stopped=True)
    with closing(StoppedPipeline(pipeline, "Nothing was recovered")) as stopped:
        if not adopt_ledger:
            stopped.facts()  # of a pipeline that the store does not know there is nothing to finish
        if not take_over:
            stopped.refuse_running()
    for way, value in ways.items():
        say(f"pipeline {pipeline.name}: {_WAYS[way].format(value)}")
        confirm("Go on?", yes)
    started = pipeline.recover(**ways)
    accepted = f"Epoch {accept_damage} is complete" if accept_damage else "Nothing was left to finish"
    earlier = resolved(started) or accepted
    say(f"pipeline {pipeline.name}: generation {started.generation.number}. {earlier}")
