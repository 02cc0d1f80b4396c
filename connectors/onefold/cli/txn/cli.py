"""`onefold txn list | resolve | prune`: the options; what they do is in txn_command.py and prune_command.py."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli import kafka_options as kafka_is
from onefold.cli.option_values import resolved
from onefold.core import ConfigError

__all__ = ["app"]

app = typer.Typer(help="What onefold has prepared and keeps in a Postgres database.", no_args_is_help=True)

Postgres = Annotated[str, typer.Option(help="URL of the destination's database.", callback=resolved)]
Pipeline = Annotated[str | None, typer.Option(help="Only this pipeline's.")]
Store = Annotated[
    str | None, typer.Option(help="The checkpoint store, if it isn't in that database.", callback=resolved)
]
Schema = Annotated[str, typer.Option("--ledger", help="The schema of the sinks' ledger.")]


@app.command(name="list")
def list_(
    postgres: Annotated[str | None, typer.Option(help="URL of the destination's database.", callback=resolved)] = None,
    pipeline: Pipeline = None,
    store: Store = None,
    schema: Schema = "onefold_sinks",
    into: kafka_is.Into = None,
    into_servers: Annotated[str | None, typer.Option(help="Its brokers.")] = None,
    into_name: kafka_is.Name = None,
    into_ledger: kafka_is.Ledger = None,
    transactional_id_prefix: kafka_is.Prefix = None,
    setting: kafka_is.Setting = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show every prepared transaction of onefold in a database, or every open one of a Kafka sink (--into, --pipeline,
    --store), and what the manifests say it should become. Changes nothing."""
    sink = kafka_is.kafka_sink(
        into,
        into_servers,
        setting or [],
        into_name=into_name,
        into_ledger=into_ledger,
        transactional_id_prefix=transactional_id_prefix,
    )
    if (sink is None) == (postgres is None):
        raise ConfigError("option-missing", "name where to look: --postgres URL, or --into TOPIC with --into-servers")
    if postgres is not None:
        from onefold.cli.txn.command import list_transactions

        list_transactions(postgres, schema, store, pipeline, as_json)
    if sink is not None:
        from onefold.cli.txn.open_transactions import list_open

        if pipeline is None or store is None:
            raise ConfigError(
                "option-missing", "--into goes with --pipeline and --store, whose manifests say what was decided"
            )
        list_open(sink, pipeline, store, as_json)


@app.command()
def resolve(
    postgres: Postgres,
    pipeline: Pipeline = None,
    gid: Annotated[str | None, typer.Option(help="Only this one; a decided one with the rest of its epoch.")] = None,
    store: Store = None,
    schema: Schema = "onefold_sinks",
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Resolve the running epoch too: FENCES the pipeline's driver if it is alive."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Commit what was decided, roll back what never will be. Exit code 1 if anything had to be left."""
    from onefold.cli.txn.command import resolve_transactions

    if not resolve_transactions(postgres, schema, store, pipeline, gid, take_over, yes):
        raise typer.Exit(1)


@app.command()
def prune(
    postgres: Postgres,
    retired: Annotated[list[str] | None, typer.Option(help="A pipeline that never runs again, by name.")] = None,
    store: Store = None,
    schema: Schema = "onefold_sinks",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Remove what is kept for sinks that a pipeline no longer has, and for retired pipelines; no table of yours."""
    from onefold.cli.prune.command import prune_bookkeeping

    prune_bookkeeping(postgres, schema, store, retired or [], yes)
