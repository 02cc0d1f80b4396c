"""`onefold txn list | resolve | prune`: what they act on, a pipeline or a whole database of several."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.arguments import AsJson, Yes
from onefold.cli.option_values import resolved

__all__ = ["app"]

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
Pipeline = Annotated[str | None, typer.Option(help="With --postgres: only the pipeline of this name.")]
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
    pipeline: Pipeline = None,
    store: Store = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show every prepared transaction of a pipeline, or of onefold in a database, and every open one of its Kafka
    sinks, and what the manifests say it should become. Changes nothing."""
    from onefold.cli.transactions import list_transactions
    from onefold.operate.databases import databases_of

    databases, described = databases_of(named, postgres, schema, store, pipeline)
    list_transactions(databases, described, as_json)


@app.command()
def resolve(
    named: Named = None,
    postgres: Postgres = None,
    pipeline: Pipeline = None,
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
    from onefold.cli.transactions import resolve_transactions
    from onefold.operate.databases import databases_of
    from onefold.operate.open_transactions import transactional

    databases, described = databases_of(named, postgres, schema, store, pipeline)
    if not databases:
        typer.echo(_NO_POSTGRES)
    elif described is not None and (sinks := transactional(described)):
        names = ", ".join(sink.name for sink in sinks)
        typer.echo(
            f"what is open of Kafka sinks ({names}) stays as it is, whatever is done here: a start ends it", err=True
        )
    if not resolve_transactions(databases, gid, take_over, yes):
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
    from onefold.operate.databases import databases_of
    from onefold.operate.prune import check_retired, prune_bookkeeping

    databases, _ = databases_of(named, postgres, schema, store, None)
    if not databases:
        typer.echo(_NO_POSTGRES)
        return
    check_retired(databases, retired or [])
    for database in databases:
        prune_bookkeeping(database, retired or [], yes)
