"""`onefold state get`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.table import Table

from onefold.cli.console import AsJson, Named, print_json, shown, table_console

app = typer.Typer(help="Ask a flow for its state.", no_args_is_help=True, rich_markup_mode=None)

Uid = Annotated[str, typer.Argument(metavar="UID", help="The operator's uid, which has queryable=True.")]
State = Annotated[str, typer.Option(help="Which state, where the operator has several.")]
View = Annotated[
    Literal["committed", "live"], typer.Option(help="live: with what the running epoch has made, and may lose.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Of a stopped flow: what its last decided epoch left.")]
WithinS = Annotated[float, typer.Option("--within", min=0, help="How long to ask again: seconds.")]


@app.callback()
def state() -> None: ...


@app.command()
def get(
    named: Named,
    uid: Uid,
    key: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="A value of each of the key's columns.")
    ] = None,
    state: State = "",
    view: View = "committed",
    offline: Offline = False,
    within_s: WithinS = 10.0,
    as_json: AsJson = False,
) -> None:
    """Print what an operator keeps of a key. Exit code 1 where that is nothing."""
    from onefold.pipeline import StateReader, read

    answer = StateReader(read(named), offline=offline, wait_s=within_s).get(uid, key or (), state=state, view=view)
    if as_json:
        print_json(answer.plain())
    else:
        table = Table(*answer.batch.schema.names, "epoch")
        for row in answer.rows:
            table.add_row(*map(shown, row.values()), str(answer.epoch))
        table_console().print(table)
    if not answer.rows:
        raise typer.Exit(1)
