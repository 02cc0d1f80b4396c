"""`onefold savepoint create | new | list | show | diff | restore | delete`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from onefold.cli.console import AsJson, Named, TakeOver, Yes, confirm, print_json, say, shown, table_console
from onefold.cli.listed_savepoints import plain_row, print_savepoints, values
from onefold.core import ConfigError
from onefold.core.values.plain import said_without, shown_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onefold.engine.savepoints.savepoint import Savepoint
    from onefold.operate.savepoint.restore import Restore
    from onefold.operate.stopped import StoppedPipeline
    from onefold.pipeline import Pipeline

app = typer.Typer(
    help="Copies of a pipeline's checkpoint, with its ledger and positions: made, listed, restored.",
    no_args_is_help=True,
)
Folder = Annotated[
    str | None,
    typer.Option(
        "--in",
        help="Where the savepoints are: a folder or a URL. By default savepoints/PIPELINE beside the checkpoint.",
    ),
]


@app.command()
def create(
    named: Named,
    name: Annotated[str | None, typer.Option(help="By default its epoch and the time.")] = None,
    folder: Folder = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the program of this machine that runs it (SIGTERM), then copy.")
    ] = False,
    take_over: TakeOver = False,
) -> None:
    """Copy what a pipeline keeps, with all that is needed to restore it. One on the engine may run meanwhile; one on
    Spark is stopped. What a stopped one had begun is finished before."""
    from onefold.pipeline import Engine, read

    _check_name(name)
    pipeline = read(named, is_stopped=True)
    into = folder or _folder(pipeline)
    with _stopped(pipeline) as stopped:
        stopped.facts()
        is_engines = isinstance(pipeline.runtime, Engine)
        if stop:
            stopped.end_driver(pipeline.stop_within_s)
        if not is_engines and not take_over:
            stopped.refuse_running()
        if is_engines or (pipeline.keeps_state and pipeline.graph.querying() is None):
            from onefold.operate.savepoint.flow_create import create_of_flow

            made = create_of_flow(stopped, name, into)
        else:
            from onefold.operate.savepoint.query_create import create_of_query

            made = create_of_query(stopped, name, into)
    _say_made(made, into)


@app.command()
def new(
    named: Named,
    name: Annotated[str, typer.Option(help="Of the savepoint.")],
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="UID/STATE=FILE", help="A state and its table, a file of Parquet (repeat it)."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="In their place, the checkpoint of an engine whose store is gone."),
    ] = None,
    epoch: Annotated[int | None, typer.Option(min=1, help="Of that checkpoint; by default the last.")] = None,
    positions: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the flow reads on: orders:0=17 (repeat it), or earliest, latest, at=2026-11-20T00:00:00Z for"
            " all. By default where its sources begin."
        ),
    ] = None,
    folder: Folder = None,
) -> None:
    """Make a savepoint from tables, or from a checkpoint whose store is gone, for a flow that was never started: it
    begins with that state, by `restore`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from onefold.operate.savepoint.flow_new import SavepointBuilder
    from onefold.pipeline import read

    _check_name(name)
    if (state is None) is (checkpoint is None) or (checkpoint and positions) or (epoch and not checkpoint):
        raise ConfigError(
            "options-conflict", "give --state, and --positions if need be; or --checkpoint, and --epoch if need be"
        )
    pipeline = read(named, is_stopped=True)
    into = folder or _folder(pipeline)
    with _stopped(pipeline) as stopped, pipeline.in_its_words():
        builder = SavepointBuilder(pipeline, positions or (), stopped.files)
        if checkpoint is not None:
            builder = builder.of_checkpoint(checkpoint, epoch)
        for each in state or ():
            of, _, file = each.partition("=")
            uid, _, called = of.rpartition("/")
            try:
                table = pq.read_table(file, partitioning=None)
            except (OSError, pa.ArrowException) as error:
                raise ConfigError(
                    "option-value",
                    f"--state {of}={shown_url(file)} is not UID/STATE=FILE with a file of Parquet:"
                    f" {said_without(file, str(error))}",
                ) from error
            builder = builder.state(uid, called, table)
        made = builder.write(f"{into}/{name}")
    _say_made(made, into)


@app.command(name="list")
def list_(named: Named, folder: Folder = None, as_json: AsJson = False) -> None:
    """Show a pipeline's savepoints, each read to its end and compared with its checksums. Exit code 1 where one is
    damaged."""
    from onefold.engine.savepoints.savepoint import listed
    from onefold.pipeline import read

    pipeline = read(named, is_stopped=True)
    into = folder or _folder(pipeline)
    with _stopped(pipeline) as stopped:
        found = listed(stopped.files.of(into), into)
    if as_json:
        print_json([values(each) for each in found])
    elif found:
        print_savepoints(table_console(), found)
    else:
        typer.echo(f"no savepoint in {shown_url(into)}")
    if not all(each.is_whole for each in found):
        raise typer.Exit(1)


@app.command()
def show(
    named: Named,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name, as `onefold savepoint list` shows it.")],
    state: Annotated[
        str | None, typer.Option(metavar="UID/STATE", help="Also the first rows of a state, of a flow's savepoint.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 20,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a savepoint: where its pipeline stood, and each state of each operator."""
    from onefold.engine.savepoints.reading import SavepointReader

    with _found(named, name, folder) as (stopped, place, savepoint):
        reader = SavepointReader(stopped.files.of(place), place, savepoint)
        rows = None if state is None else reader.first(state, limit)
    if as_json:
        print_json(json.loads(savepoint.to_json()) | ({} if rows is None else {"rows": [*map(plain_row, rows)]}))
        return
    typer.echo(shown(f"{name}: pipeline {savepoint.pipeline}, epoch {savepoint.epoch}, made at {savepoint.made_at}"))
    typer.echo(shown(f"positions: {savepoint.positions.to_json()}"))
    table = Table("operator", "state", "kind", "rows", "files")
    for each in savepoint.flow.states if savepoint.flow is not None else ():
        table.add_row(*map(shown, (each.uid, each.name, each.kind, f"{each.rows:,}", len(each.files))))
    if table.rows:
        table_console().print(table)
    for row in rows or ():
        typer.echo(shown(repr(row)))


@app.command()
def diff(
    named: Named,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="The earlier one.")],
    other: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="The later one.")],
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show what two savepoints of a flow differ in: positions, and of each state how many keys came, went and have
    other values."""
    from onefold.engine.savepoints.comparing import differences
    from onefold.engine.savepoints.reading import SavepointReader
    from onefold.engine.savepoints.savepoint import find

    with _found(named, name, folder) as (stopped, place, first):
        into = place.rpartition("/")[0]
        files = stopped.files.of(into)
        second = find(files, into, other)
        readers = (SavepointReader(files, f"{into}/{each.name}", each) for each in (first, second))
        found = [*differences(*readers)]
    if as_json:
        sides = [
            {"name": each.name, "epoch": each.epoch, "positions": json.loads(each.positions.to_json())}
            for each in (first, second)
        ]
        print_json({"savepoints": sides, "states": [*map(asdict, found)]})
        return
    moved = second.positions.differences(first.positions)
    typer.echo(shown(f"{name}: epoch {first.epoch}; {other}: epoch {second.epoch}"))
    typer.echo(shown(f"positions: {moved or 'the same'}"))
    table = Table("operator", "state", "kind", "rows before", "after", "added", "removed", "changed")
    for of in found:
        counts = (of.before, of.after, of.added, of.removed, of.changed)
        row = ("none" if count is None else f"{count:,}" for count in counts)
        table.add_row(*map(shown, (of.uid, of.name, of.kind, *row)))
    if table.rows:
        table_console().print(table)


@app.command()
def delete(
    named: Named,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name, as `onefold savepoint list` shows it.")],
    folder: Folder = None,
    yes: Yes = False,
) -> None:
    """Remove a savepoint. Refused while its state is nowhere else yet."""
    from onefold.engine.savepoints.savepoint import refuse_needed

    with _found(named, name, folder) as (stopped, place, savepoint):
        refuse_needed(stopped.store, stopped.find(), savepoint, stopped.name)
        confirm(f"Remove savepoint {shown(name)} of epoch {savepoint.epoch}?", yes)
        stopped.files.of(place).remove(place)
    say(f"removed savepoint {name}")


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
    missing: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-missing", metavar="UID", help="Leave out the state of an operator that is gone (engine)."
        ),
    ] = None,
    new: Annotated[
        list[str] | None,
        typer.Option("--allow-new", metavar="UID", help="Have an operator begin that the savepoint lacks (engine)."),
    ] = None,
    folder: Folder = None,
    take_over: TakeOver = False,
    yes: Yes = False,
) -> None:
    """Put a savepoint in the place of what the pipeline keeps, and its positions back to it; or begin another pipeline
    with it. Shows what it would do, and asks."""
    from onefold.engine.savepoints.savepoint import find
    from onefold.pipeline import read

    pipeline = read(named, is_stopped=True)
    target = pipeline if other is None else read(other, is_stopped=True)
    with _stopped(target) as stopped:
        place = folder or _folder(pipeline)
        savepoint = find(stopped.files.of(place), place, name)
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
        work = _restore(savepoint, f"{place}/{name}", stopped, shuffle_partitions, missing or (), new or ())
        work.check()
        if not take_over:
            stopped.refuse_running()
        checkpoint, begins = shown_url(target.checkpoint), other is not None or work.begins
        state = "" if shuffle_partitions is None else f", its state in {shuffle_partitions} partitions"
        if not begins:
            plan = f"takes the place of what is in the checkpoint {checkpoint}{state}{_going_back(work)}"
        else:
            plan = f"becomes the begin of pipeline {target.name}, with the checkpoint {checkpoint}{state}"
        say(f"savepoint {name} (epoch {savepoint.epoch}) {plan}")
        if not yes:
            typer.confirm("Do it?", abort=True)
            if not take_over:
                stopped.refuse_running()  # it may have been started meanwhile
        if begins:
            work.into_new()
        else:
            work.into_same()
    started = f"with `onefold restart {target.name}` where a daemon holds it, else with `onefold run`"
    say(f"restored: start pipeline {target.name} {started}")


def _restore(
    savepoint: Savepoint,
    place: str,
    stopped: StoppedPipeline,
    shuffle_partitions: int | None,
    missing: Sequence[str],
    new: Sequence[str],
) -> Restore:
    from onefold.pipeline import Spark

    if savepoint.query is not None and isinstance(stopped.pipeline.runtime, Spark):
        from onefold.operate.savepoint.query_restore import QueryRestore

        if missing or new:
            raise ConfigError(
                "option-value",
                f"savepoint {savepoint.name!r} is a query's checkpoint, which is copied whole: leave out"
                " --allow-missing and --allow-new",
            )
        return QueryRestore(savepoint, place, stopped, shuffle_partitions)
    from onefold.operate.savepoint.flow_restore import FlowRestore

    if shuffle_partitions is not None:
        raise ConfigError(
            "option-value",
            f"savepoint {savepoint.name!r} is of a flow's state, which goes into any number of parts: leave"
            " out --shuffle-partitions",
        )
    return FlowRestore(savepoint, place, stopped, missing, new)


def _going_back(work: Restore) -> str:
    """What the plan says of the records since, as far as the store knows now."""
    facts = work.stopped.find()
    if facts is None or not work.goes_back(facts) or facts.last is None:
        return ""
    again = work.again(facts, work.stopped.store.moves(work.stopped.name))
    return f", and the pipeline goes back from epoch {facts.last.epoch}; records that come again: {again:,}"


def _check_name(name: str | None) -> None:
    from onefold.engine.savepoints.savepoint import PARTIAL

    if name is not None and (not name or "/" in name or name.startswith(".") or name.endswith(PARTIAL)):
        raise ConfigError("option-value", f"--name {name!r} cannot be a folder's name, or is hidden there")


def _say_made(made: Savepoint, into: str) -> None:
    size = f"{len(made.files)} files, {made.bytes:,} bytes"
    at = f"{shown_url(into)}/{made.name}"
    say(f"savepoint {made.name} of pipeline {made.pipeline}: epoch {made.epoch}, {size}, in {at}")


def _folder(pipeline: Pipeline) -> str:
    return f"{pipeline.checkpoint.rstrip('/').rpartition('/')[0]}/savepoints/{pipeline.name}"


@contextmanager
def _found(named: str, name: str, folder: str | None) -> Iterator[tuple[StoppedPipeline, str, Savepoint]]:
    """A savepoint of the pipeline, and its place."""
    from onefold.engine.savepoints.savepoint import find
    from onefold.pipeline import read

    pipeline = read(named, is_stopped=True)
    into = folder or _folder(pipeline)
    with _stopped(pipeline) as stopped:
        yield stopped, f"{into}/{name}", find(stopped.files.of(into), into, name)


@contextmanager
def _stopped(pipeline: Pipeline) -> Iterator[StoppedPipeline]:
    """With a Spark session, once one is needed."""
    from onefold.clients.files import FileSystems
    from onefold.operate.stopped import StoppedPipeline

    with ExitStack() as stack:
        sessions: list[SparkSession] = []

        def spark() -> SparkSession:
            if not sessions:
                own = pipeline.spark.session_for(f"onefold savepoint {pipeline.name}", "savepoint")
                sessions.append(stack.enter_context(own))
            return sessions[0]

        yield stack.enter_context(closing(StoppedPipeline(pipeline, "Nothing was changed", FileSystems(spark))))
