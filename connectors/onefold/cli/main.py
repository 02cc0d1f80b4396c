"""The `onefold` command."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from onefold.cli.commands.control import epochs, page, pause, restart, resume, status, stop
from onefold.cli.commands.doctor import doctor, plan
from onefold.cli.commands.files import new, schema, validate
from onefold.cli.commands.letters import letters
from onefold.cli.commands.positions import positions, sinks
from onefold.cli.commands.preview import preview
from onefold.cli.commands.recover import recover
from onefold.cli.commands.reset import reset
from onefold.cli.commands.run import run
from onefold.cli.commands.savepoint import app as savepoint_app
from onefold.cli.commands.txn import app as txn_app
from onefold.cli.commands.verify import verify
from onefold.cli.console import AsHtml
from onefold.cli.state import app as state_app
from onefold.local.cli import app as local_app

app = typer.Typer(
    help="Exactly-once, end to end, for data pipelines in Python.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # tables would cut the names of options at 80 columns
)
app.add_typer(txn_app, name="txn")
app.add_typer(savepoint_app, name="savepoint")
app.add_typer(state_app, name="state")
for commands in (
    (new, schema, validate),
    (doctor, plan, preview),
    (run, status, page, epochs, pause, resume, stop, restart),
    (positions, sinks, letters, recover, verify, reset),
):
    for command in commands:
        app.command()(command)
app.add_typer(local_app, name="local")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"onefold {version('onefold')}")
        raise typer.Exit


@app.callback()
def onefold(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


Delivery = Annotated[Literal["two_phase", "staged", "direct"], typer.Option(help="How the Postgres sink delivers.")]


@app.command()
def demo(
    rows: Annotated[int | None, typer.Option(min=10_000, help="Orders to produce: 600,000.")] = None,
    kills: Annotated[int | None, typer.Option(min=8, max=200, help="Kills of the pipeline, at least: 10.")] = None,
    full: Annotated[bool, typer.Option("--full", help="2,000,000 orders, and 14 kills.")] = False,
    delivery: Delivery = "two_phase",
    seed: Annotated[int, typer.Option(help="The same seed, the same orders and moments.")] = 1,
    guarantee: Annotated[
        Literal["exactly-once", "at-least-once"], typer.Option(help="at-least-once: protection off.")
    ] = "exactly-once",
    directory: Annotated[Path, typer.Option("--dir", help="Servers, logs and data.")] = Path(".onefold/demo"),
    html: AsHtml = None,
) -> None:
    """Kafka to Postgres, killed at every bad moment, then audited row by row. Exit code 1 if any row is wrong."""
    from onefold.trials.demo import DemoSettings, run_demo

    default_rows, default_kills = (2_000_000, 14) if full else (DemoSettings.rows, DemoSettings.kills)
    settings = DemoSettings(
        rows=rows or default_rows,
        kills=kills or default_kills,
        delivery=delivery,
        seed=seed,
        exactly_once=guarantee == "exactly-once",
        directory=directory,
        html=html,
    )
    if not run_demo(settings, Console()):
        raise typer.Exit(1)


_INTO = ("postgres", "kafka", "kafka-keyed", "hbase")
TortureMode = Literal["append", "upsert", "row_key", "rolling", "incremental"]
# What the source has: of an HBase table whose rows have versions, orders that have.
_ORDERS_OF: dict[TortureMode, TortureMode] = {"row_key": "upsert", "rolling": "append", "incremental": "append"}


def _systems(text: str) -> tuple[str, ...]:
    """Sinks side by side in one pipeline, at most one for each system: `kafka+hbase`."""
    found = tuple(text.split("+"))
    if not {*found} <= {*_INTO}:
        raise typer.BadParameter(f"{text!r}: any of {', '.join(_INTO)}, several joined by +")
    if len({into.partition("-")[0] for into in found}) < len(found):
        raise typer.BadParameter(f"{text!r}: one sink for each system")
    return found


@app.command()
def torture(
    faults: Annotated[int, typer.Option(min=1, help="How many faults, at least.")] = 60,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="For so long, instead of so many faults.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed, the same faults in the same order.")] = 1,
    sink: Annotated[
        str, typer.Option(help=f"Where the orders go: {', '.join(_INTO)}; to several at once: kafka-keyed+postgres.")
    ] = "postgres",
    delivery: Delivery = "two_phase",
    runtime: Annotated[
        Literal["spark", "engine", "both"],
        typer.Option(help="engine: the flow on the embedded engine. both: it moves between them by savepoints, too."),
    ] = "spark",
    state: Annotated[Literal["memory", "rocksdb"], typer.Option(help="Which backend keeps a flow's state.")] = "memory",
    mechanism: Annotated[
        Literal["barriers", "microbatch", "transaction"],
        typer.Option(help="What protects a flow on the engine. transaction: with totals, and without windows."),
    ] = "barriers",
    alignment: Annotated[
        Literal["aligned", "unaligned"], typer.Option(help="How a flow on the engine waits for barriers.")
    ] = "aligned",
    master: Annotated[
        Literal["local", "cluster"], typer.Option(help="cluster: a standalone Spark cluster of two workers.")
    ] = "local",
    mode: Annotated[
        TortureMode | None,
        typer.Option(help="append, or upsert: late versions and deletions, too. Into HBase: the sink's mode."),
    ] = None,
    bad_rows: Annotated[bool, typer.Option(help="Some orders are bad, and become dead letters.")] = True,
    dead_letters: Annotated[
        Literal["table", "topic"] | None,
        typer.Option(help="table: of what Postgres refuses. topic: of what cannot be read, as for all other sinks."),
    ] = None,
    orders_per_s: Annotated[int, typer.Option(min=20, help="How many are produced; less on a slow machine.")] = 200,
    servers: Annotated[
        Literal["local", "containers"],
        typer.Option(help="containers: their networks are cut, too. Needs an engine, and the images."),
    ] = "local",
    directory: Annotated[Path, typer.Option("--dir", help="Servers, logs, history.")] = Path(".onefold/torture"),
    html: AsHtml = None,
) -> None:
    """Random faults on real servers and a real Spark, or the embedded engine, audited by named invariants. Exit code 1
    on any violation."""
    if runtime == "engine" and master == "cluster":
        raise typer.BadParameter("the engine runs on this machine alone", param_hint="--master")
    if runtime == "both" and (master == "cluster" or sink != "postgres"):
        raise typer.BadParameter("it moves on this machine alone, and into Postgres", param_hint="--runtime")
    if runtime != "engine" and (mechanism, alignment) != ("barriers", "aligned"):
        raise typer.BadParameter("the engine has these", param_hint="--mechanism, --alignment")
    if mechanism != "barriers" and alignment != "aligned":
        raise typer.BadParameter("of barriers alone", param_hint="--alignment")
    sinks = _systems(sink)
    into_hbase = "hbase" in sinks
    mode = mode or ("row_key" if into_hbase else "append")
    if (mode in _ORDERS_OF) is not into_hbase:
        raise typer.BadParameter(
            f"{', '.join(_ORDERS_OF)} are the modes of --sink hbase, and append and upsert those of the others",
            param_hint="--mode",
        )
    if into_hbase and len(sinks) > 1 and mode != "row_key":
        raise typer.BadParameter("all sinks take the same rows: those of row_key", param_hint="--mode")
    if mode == "upsert" and "postgres" not in sinks:
        raise typer.BadParameter("a topic takes every order, there is no upsert", param_hint="--mode")
    if sinks != ("postgres",) and dead_letters == "table":
        raise typer.BadParameter("only Postgres has a table of dead letters", param_hint="--dead-letters")
    deliveries = {"hbase": mode, "postgres": delivery, "kafka": "transactional", "kafka-keyed": "keyed"}
    from onefold.trials.torture import TortureSettings, run_torture

    settings = TortureSettings(
        faults,
        minutes,
        seed,
        tuple(deliveries[into] for into in sinks),
        master,
        directory,
        orders_per_s=orders_per_s,
        mode=_ORDERS_OF.get(mode, mode),
        bad_rows=bad_rows,
        dead_letters=dead_letters or ("table" if sinks == ("postgres",) else "topic"),
        servers=servers,
        runtime=runtime,
        state=state,
        mechanism=mechanism,
        alignment=alignment,
        html=html,
    )
    if not run_torture(settings, Console()):
        raise typer.Exit(1)


@app.command()
def prove(
    deep: Annotated[
        bool, typer.Option("--deep", help="A million schedules of the deep bound, in an hour or two.")
    ] = False,
    mutants: Annotated[bool, typer.Option(help="Try wrong versions of protocol, store and sinks, too.")] = True,
    replay: Annotated[str | None, typer.Option(help="One schedule again, as a failure printed it.")] = None,
) -> None:
    """The protocol, struck at every step in memory: every named invariant. Exit code 1 if the proof does not hold."""
    from onefold.trials.prove import replay_schedule, run_proof

    holds = replay_schedule(Console(), replay) if replay else run_proof(Console(), deep, mutants)
    if not holds:
        raise typer.Exit(1)
