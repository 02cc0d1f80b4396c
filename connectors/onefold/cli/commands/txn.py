"""`onefold txn list | resolve | prune`: what they act on, a pipeline or a whole database of several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onefold.cli.console import AsJson, Yes, confirm, print_json, resolved, say, shown, table_console
from onefold.core import Committable, ConfigError, OnefoldError
from onefold.core.protocol.in_doubt import Fate

if TYPE_CHECKING:
    from onefold.operate.in_doubt import LedgerDatabase, ListedTransaction
    from onefold.operate.prune import Gone
    from onefold.operate.transactions import Verdict
    from onefold.sinks.postgres.admin import PreparedTransaction
    from onefold.sinks.postgres.naming import Gid

_COLOURS = {Fate.COMMIT: "green", Fate.ROLL_BACK: "yellow", Fate.LEAVE: "default", Fate.UNKNOWN: "red"}

app = typer.Typer(
    help="What onefold has prepared and keeps, of a pipeline or in a Postgres database.", no_args_is_help=True
)

Named = Annotated[
    str | None,
    typer.Argument(metavar="[PIPELINE]", help="orders.toml, or jobs/orders.py:pipeline. Or, without: --postgres."),
]
Postgres = Annotated[
    str | None,
    typer.Option(
        help="URL of a database, for all pipelines that write there, also those without a file.", callback=resolved
    ),
]
Only = Annotated[str | None, typer.Option(help="With --postgres: only the pipeline of this name.")]
Store = Annotated[
    str | None, typer.Option(help="With --postgres: the checkpoint store, if it isn't there.", callback=resolved)
]
Schema = Annotated[
    str | None,
    typer.Option("--ledger", help="With --postgres: the schema of the sinks' ledger, if it isn't onefold_sinks."),
]
_NO_POSTGRES = (
    "no sink of the pipeline is Postgres: nothing was done. A start ends the open transactions of Kafka sinks"
)


@app.command(name="list")
def list_(
    named: Named = None,
    postgres: Postgres = None,
    pipeline: Only = None,
    store: Store = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show every prepared transaction of a pipeline, or of onefold in a database, and every open one of its Kafka
    sinks, and what the manifests say it should become. Changes nothing."""
    from onefold.operate.in_doubt import databases_of, open_of, prepared_in

    databases, described = databases_of(named, postgres, schema, store, pipeline)
    found, others = prepared_in(databases)
    ours = [verdict for _, verdict in found]
    opened, error = [], None
    try:
        opened = open_of(described) if described is not None else []
    except OnefoldError as failed:  # of Kafka sinks: what the databases have is shown all the same
        error = failed
    if as_json and (databases or error is None):
        print_json({"ours": [*map(_as_dict, ours), *map(_open_as_dict, opened)], "others": [*map(_foreign, others)]})
    elif not as_json:
        if databases:
            _print(ours, others)
        if opened or not (databases or error):
            _print_open(opened)
    if error is not None:
        raise error


@app.command()
def resolve(
    named: Named = None,
    postgres: Postgres = None,
    pipeline: Only = None,
    gid: Annotated[str | None, typer.Option(help="Only this one; a decided one with the rest of its epoch.")] = None,
    store: Store = None,
    schema: Schema = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Resolve the running epoch too: FENCES the pipeline's driver if it is alive."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Commit what was decided, roll back what never will be. Exit code 1 if anything had to be left."""
    from onefold.operate.in_doubt import databases_of, transactional
    from onefold.operate.stopped import StoppedPipeline

    databases, described = databases_of(named, postgres, schema, store, pipeline)
    if take_over and described is not None:
        with closing(StoppedPipeline(described, "Nothing was changed")) as stopped:
            stopped.facts()
    if not databases:
        typer.echo(_NO_POSTGRES)
    elif described is not None and (sinks := transactional(described)):
        names = ", ".join(sink.name for sink in sinks)
        typer.echo(
            f"what is open of Kafka sinks ({names}) stays as it is, whatever is done here: a start ends it", err=True
        )
    if not _resolve_transactions(databases, gid, take_over, yes):
        raise typer.Exit(1)


@app.command()
def prune(
    named: Named = None,
    postgres: Postgres = None,
    retired: Annotated[list[str] | None, typer.Option(help="A pipeline that never runs again, by name.")] = None,
    store: Store = None,
    schema: Schema = None,
    yes: Yes = False,
) -> None:
    """Remove what is kept for sinks that a pipeline no longer has, and for retired pipelines; no table of yours."""
    from onefold.operate.in_doubt import databases_of
    from onefold.operate.prune import check_retired, prune_bookkeeping

    databases, _ = databases_of(named, postgres, schema, store, None)
    if not databases:
        typer.echo(_NO_POSTGRES)
        return
    check_retired(databases, retired or [])

    def ask(gone: Gone, stages: Sequence[str]) -> None:
        _print_gone(gone, stages)
        confirm("Remove all of this?", yes)

    for database in databases:
        sinks, stages = prune_bookkeeping(database, retired or [], ask)
        removed = f"removed: the bookkeeping of {sinks} sinks, and {stages} more stage tables"
        say(removed if sinks or stages else "nothing to prune")


def _resolve_transactions(databases: Sequence[LedgerDatabase], gid: str | None, take_over: bool, yes: bool) -> bool:
    """Shows, asks, resolves, and shows what had to be left; False if anything had to be."""
    from onefold.operate.in_doubt import prepared_in, the_one

    if take_over and (gid is not None or any(database.pipeline is None for database in databases)):
        raise ConfigError("options-conflict", "--take-over is for one whole pipeline: name it, and no --gid")
    found, others = prepared_in(databases)
    if gid is not None:
        found = [the_one(gid, found, others)]
    parts = [(database, [one for at, one in found if at == database]) for database in databases]
    are_done = [_resolve(at, mine, gid, take_over, yes) for at, mine in parts if mine or gid is None]
    return all(are_done)


def _resolve(database: LedgerDatabase, found: list[Verdict], gid: str | None, take_over: bool, yes: bool) -> bool:
    pipeline = database.pipeline if gid is None else found[0].transaction.pipeline
    console = Console(soft_wrap=True)
    _print(found, [])
    if not (found or take_over):
        return True
    names = [pipeline] if pipeline else sorted(_resolvable(found))
    doing = "Take over, and fence the driver of," if take_over else "Commit and roll back, as shown, for"
    if not names or not (yes or typer.confirm(f"{doing} {', '.join(names)}?", abort=True)):
        return not found
    looked_at = {verdict.transaction.name for verdict in found}
    with database.transactions() as transactions:
        for name in names:
            if take_over:
                started = transactions.take_over(name)
                console.print(
                    f"{shown(name)}: taken over as generation {started.generation.number}; {started.finished} decided"
                    " epochs finished"
                )
            fates = list(transactions.resolve(name, gid).values())
            if fates or not take_over:
                counts = f"{fates.count(Fate.COMMIT)} committed, {fates.count(Fate.ROLL_BACK)} rolled back"
                console.print(f"{shown(name)}: {counts}")
        still = [v for v in transactions.look(pipeline)[0] if v.transaction.is_here or v.transaction.name in looked_at]
    left = [verdict for verdict in still if gid in (None, verdict.transaction.name)]
    if left:
        console.print(f"{len(left)} left:")
        _print(left, [])
    return not left


def _resolvable(found: list[Verdict]) -> set[str]:
    names = {v.transaction.pipeline for v in found if v.fate in (Fate.COMMIT, Fate.ROLL_BACK)}
    return {name for name in names if name is not None}


def _print(ours: Sequence[Verdict], others: Sequence[PreparedTransaction]) -> None:
    console = table_console()
    if ours:
        table = _table("should become", "pipeline", "sink", "generation", "epoch", "age", "owner")
        for verdict in ours:
            t, gid = verdict.transaction, verdict.transaction.gid
            assert gid is not None, t
            of = (t.pipeline or "?", t.sink or "?", gid.generation, gid.epoch, _age(t.age_s), t.owner)
            table.add_row(_coloured(verdict.fate), *map(shown, (*of, t.name, verdict.because)))
        console.print(table)
    else:
        console.print("no prepared transactions of onefold")
    if others:
        oldest = others[0]
        console.print(
            f"{len(others)} of other people, which onefold leaves alone; the oldest is {shown(repr(oldest.name))} of"
            f" {shown(oldest.owner)} in database {shown(oldest.database)}, {_age(oldest.age_s)} old"
        )


def _as_dict(verdict: Verdict) -> dict[str, Any]:
    transaction, gid = verdict.transaction, verdict.transaction.gid
    assert gid is not None, transaction
    of = {"pipeline": transaction.pipeline, "sink": transaction.sink}
    return _foreign(transaction) | of | _fated(gid, verdict)


def _open_as_dict(one: ListedTransaction) -> dict[str, Any]:
    of = {"pipeline": one.pipeline, "sink": one.committable.sink}
    return {"transaction": one.committable.handle, "age_s": round(one.age_s, 3)} | of | _fated(one.committable, one)


def _fated(of: Gid | Committable, verdict: Verdict | ListedTransaction) -> dict[str, Any]:
    fate = {"should_become": verdict.fate.value, "because": verdict.because}
    return {"generation": of.generation, "epoch": of.epoch} | fate


def _foreign(transaction: PreparedTransaction) -> dict[str, Any]:
    return {
        "gid": transaction.name,
        "owner": transaction.owner,
        "database": transaction.database,
        "prepared_at": transaction.prepared_at.isoformat(),
        "age_s": round(transaction.age_s, 3),
    }


def _print_open(found: Sequence[ListedTransaction]) -> None:
    table = _table("should become", "sink", "generation", "epoch", "age")
    for one in found:
        c = one.committable
        of = (c.sink, c.generation, c.epoch, _age(one.age_s))
        table.add_row(_coloured(one.fate), *map(shown, (*of, c.handle, one.because)))
    table_console().print(table if found else "no open transactions of Kafka sinks")


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    table.add_column("transaction", overflow="fold")
    table.add_column("because", overflow="fold")
    return table


def _coloured(fate: Fate) -> str:
    return f"[{_COLOURS[fate]}]{fate.value}[/]"


def _age(age_s: float) -> str:
    return str(timedelta(seconds=int(age_s)))


def _print_gone(gone: Gone, stages: Sequence[str]) -> None:
    table = Table("pipeline", "sink", "ledger at epoch", "parts", "staged", "stage table", "because", box=None)
    for kept, because in gone.items():
        counts = (kept.ledger.epoch if kept.ledger else 0, kept.parts, kept.staged)
        stage = ", ".join(kept.stages) or "-"
        table.add_row(*map(shown, (kept.pipeline, kept.sink, *counts, stage, because)))
    for stage in stages:
        table.add_row("-", "-", "-", "-", "-", stage, "no sink that was ever opened here stages there")
    table_console().print(table)
