"""`onefold reset`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli.console import Named, TakeOver, Yes, confirm, say
from onefold.core import ConfigError
from onefold.core.values.plain import shown_url

if TYPE_CHECKING:
    from onefold.operate.reset import LedgerPlace, Removal
    from onefold.operate.stopped import StoppedPipeline


def reset(
    named: Named,
    rows: Annotated[
        bool, typer.Option("--rows", help="All rows of the sinks' tables and topics go, too, whoever wrote them.")
    ] = False,
    take_over: TakeOver = False,
    yes: Yes = False,
) -> None:
    """Remove ledger, prepared work, store and checkpoint of a pipeline, so that its next start is its first. For
    development; shows what would go, and asks."""
    from onefold.operate.reset import places_of
    from onefold.operate.stopped import StoppedPipeline
    from onefold.pipeline import read

    try:
        pipeline = read(named)  # --rows empties what it names now
    except ConfigError:
        pipeline = read(named, is_stopped=True)
    places = places_of(pipeline, rows)
    with closing(StoppedPipeline(pipeline, "Nothing was removed")) as stopped:
        reset_pipeline(stopped, places, take_over, yes)


def reset_pipeline(stopped: StoppedPipeline, places: Sequence[LedgerPlace], take_over: bool, yes: bool) -> None:
    from onefold.operate.reset import reset

    def ask(removal: Removal) -> None:
        say(f"pipeline {stopped.name} begins anew without")
        for line in removal.lines:
            say(f"  {line}")
        for server in removal.rows_stay:
            say(f"the rows in {server} stay: --rows removes them, too")
        if stopped.checkpoint.is_elsewhere:
            say(f"the checkpoint {shown_url(stopped.checkpoint.place)} stays: remove it yourself")
        confirm("Remove all of this?", yes)

    if reset(stopped, places, take_over, ask):
        say(f"removed: the next start of pipeline {stopped.name} is its first")
    else:
        say(f"there is nothing of pipeline {stopped.name} here")
