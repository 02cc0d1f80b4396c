"""`onefold savepoint create | list | restore`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from onefold.cli.arguments import AsJson, Named, Yes
from onefold.cli.shown import shown
from onefold.core import ConfigError
from onefold.core.values.plain import shown_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onefold.operate.savepoint.files import Anywhere
    from onefold.operate.savepoint.restore import Restore
    from onefold.pipeline import Pipeline

__all__ = ["app"]

app = typer.Typer(
    help="Copies of a pipeline's checkpoint, with its ledger and positions: made, listed, restored.",
    no_args_is_help=True,
)
Folder = Annotated[
    str | None,
    typer.Option(
        "--in",
        help="Where the savepoints are: a folder, or a URL that Spark reaches. By default savepoints/"
        "PIPELINE beside the checkpoint.",
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Also where it may be running: FENCES its driver if it is alive.")
]


@app.command()
def create(
    named: Named,
    name: Annotated[str | None, typer.Option(help="By default its epoch and the time.")] = None,
    folder: Folder = None,
    take_over: TakeOver = False,
) -> None:
    """Copy the checkpoint of a stopped pipeline, with all that is needed to restore it. What it had begun is finished
    before."""
    from onefold.operate.savepoint.at_rest import check_idle
    from onefold.operate.savepoint.create import PARTIAL, create
    from onefold.pipeline import read

    if name is not None and (not name or "/" in name or name.startswith(".") or name.endswith(PARTIAL)):
        raise ConfigError("option-value", f"--name {name!r} cannot be a folder's name, or is hidden there")
    pipeline = read(named)
    with _files(pipeline) as files:
        check_idle(pipeline, take_over)
        into = folder or _folder(pipeline)
        made = create(pipeline, name, into, files)
    console = Console(soft_wrap=True)
    size = f"{len(made.files)} files, {made.bytes:,} bytes"
    console.print(
        f"savepoint {shown(made.name)} of pipeline {shown(made.pipeline)}: epoch {made.epoch}, {size}, in"
        f" {shown(shown_url(into))}/{shown(made.name)}",
        highlight=False,
    )


@app.command(name="list")
def list_(named: Named, folder: Folder = None, as_json: AsJson = False) -> None:
    """Show a pipeline's savepoints, each read to its end and compared with its checksums. Exit code 1 where one is
    damaged."""
    from onefold.cli.tables import table_console
    from onefold.operate.savepoint import listing
    from onefold.pipeline import read

    pipeline = read(named)
    into = folder or _folder(pipeline)
    with _files(pipeline) as files:
        found = listing.listed(files.of(into), into)
    if as_json:
        typer.echo(listing.as_json(found))
    elif found:
        listing.print_savepoints(table_console(), found)
    else:
        typer.echo(f"no savepoint in {shown_url(into)}")
    if not all(each.is_whole for each in found):
        raise typer.Exit(1)


@app.command()
def restore(
    named: Named,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name, as `onefold savepoint list` shows it.")],
    other: Annotated[
        str | None,
        typer.Option("--as", metavar="PIPELINE", help="Another pipeline, never started: it begins with the savepoint."),
    ] = None,
    shuffle_partitions: Annotated[
        int | None, typer.Option(min=1, help="Share the state out among so many partitions (RocksDB).")
    ] = None,
    folder: Folder = None,
    take_over: TakeOver = False,
    yes: Yes = False,
) -> None:
    """Put a savepoint in the place of the pipeline's checkpoint, and its positions back to it; or begin another
    pipeline with it. Shows what it would do, and asks."""
    from onefold.operate.savepoint.at_rest import check_idle
    from onefold.operate.savepoint.listing import find
    from onefold.operate.savepoint.restore import Restore
    from onefold.pipeline import read

    pipeline = read(named)
    target = pipeline if other is None else read(other)
    console = Console(soft_wrap=True)
    with _files(target) as files:
        place = folder or _folder(pipeline)
        savepoint = find(files.of(place), place, name)
        if savepoint.pipeline != pipeline.name:
            raise ConfigError(
                "savepoint-of-another",
                f"savepoint {name!r} is of pipeline {savepoint.pipeline!r}, not of {pipeline.name!r}: name that one's"
                " pipeline",
            )
        if other is not None and target.name == pipeline.name:
            raise ConfigError(
                "option-value", f"--as {other} is pipeline {target.name!r} itself: leave --as out, or give it a name"
            )
        work = Restore(savepoint, f"{place}/{name}", files, shuffle_partitions)
        work.check()
        check_idle(target, take_over)
        checkpoint = shown_url(target.checkpoint)
        state = "" if shuffle_partitions is None else f", its state in {shuffle_partitions} partitions"
        if other is None:
            plan = f"takes the place of the checkpoint {checkpoint}{state}{_going_back(work, target)}"
        else:
            plan = f"becomes the begin of pipeline {target.name}, with the checkpoint {checkpoint}{state}"
        console.print(shown(f"savepoint {name} (epoch {savepoint.epoch}) {plan}"), highlight=False)
        if not yes:
            typer.confirm("Do it?", abort=True)
            check_idle(target, take_over)  # it may have been started meanwhile
        if other is None:
            work.into_same(target)
        else:
            work.into_new(target)
    started = f"with `onefold restart {shown(target.name)}` where a daemon holds it, else with `onefold run`"
    console.print(f"restored: start pipeline {shown(target.name)} {started}", highlight=False)


def _going_back(work: Restore, pipeline: Pipeline) -> str:
    """What the plan says of the records since, as far as the store knows now."""
    from onefold.core.store.checkpoint_store import CheckpointStore

    with closing(CheckpointStore(pipeline.store_url, lock_timeout_s=10)) as store:
        facts = store.facts(pipeline.name) if store.look() is not None else None
        if facts is None or not work.goes_back(pipeline.name, facts) or facts.last is None:
            return ""
        again = work.again(facts, store.moves(pipeline.name))
    return f", and the pipeline goes back from epoch {facts.last.epoch}; records that come again: {again:,}"


def _folder(pipeline: Pipeline) -> str:
    return f"{pipeline.checkpoint.rstrip('/').rpartition('/')[0]}/savepoints/{pipeline.name}"


@contextmanager
def _files(pipeline: Pipeline) -> Iterator[Anywhere]:
    """Files, and a Spark session once one is needed."""
    from onefold.operate.savepoint.files import Anywhere
    from onefold.spark.scratch import temporary_folder
    from onefold.spark.session import session_of_ones_own

    with ExitStack() as stack:
        sessions: list[SparkSession] = []

        def spark() -> SparkSession:
            if not sessions:
                scratch = stack.enter_context(temporary_folder("onefold-savepoint-"))
                name, runtime = f"onefold savepoint {pipeline.name}", pipeline.spark
                own = session_of_ones_own(name, scratch, runtime.master, runtime.settings)
                sessions.append(stack.enter_context(own))
            return sessions[0]

        yield Anywhere(spark)
