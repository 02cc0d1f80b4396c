"""`onefold status | epochs | page | pause | resume | stop | restart`: what they ask of the daemon, and print."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from onefold.cli.console import AsJson, print_json, table_console
from onefold.core import ConfigError, Retriable
from onefold.core.values.plain import SAID_MAX, counted, plain
from onefold.core.waiting import Wait

if TYPE_CHECKING:
    from onefold.daemon.client import Client

_WRONG = ("failed", "fenced")
_AT_WORK = ("running", "paused")
_AT_REST = ("stopped", "finished")
_SLOW_S = 10.0  # an epoch that runs for longer is told
_NAMED = 5  # subtasks that it waits for

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PIPELINE...]", help="Names, or the files that define them; all, or the only one, without."
    ),
]
One = Annotated[list[str] | None, typer.Argument(metavar="[PIPELINE]", help="Its name, or the file that defines it.")]
Url = Annotated[str, typer.Option(envvar="ONEFOLD_URL", help="Where the daemon's API is.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="ONEFOLD_TOKEN_FILE", help="The file with its token; without one, this user's own."),
]
Ca = Annotated[Path | None, typer.Option(help="The certificate that has signed the daemon's: PEM.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Ask over the network without TLS, or by a tunnel.")]
Within = Annotated[float, typer.Option(min=0, help="Seconds to wait until that is done.")]
_URL = "http://127.0.0.1:8417"
_COLOURS = {
    **dict.fromkeys(("running", "finished", "complete"), "green"),
    **dict.fromkeys(("paused", "waiting", "stopping", "stopped", "starting", "open", "decided"), "yellow"),
    **dict.fromkeys(("failed", "fenced", "damaged"), "red"),
}


def status(
    pipelines: Names = None,
    url: Url = _URL,
    token_file: TokenFile = None,
    ca: Ca = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Show the pipelines of a running daemon. Exit code 1 where one has failed or was fenced."""
    client = _client(url, token_file, ca, insecure)
    found = [client.get("pipelines", name) for name in _names(pipelines)] if pipelines else client.get("pipelines")
    print_json(found) if as_json else _print_pipelines(found)
    if any(one["state"] in _WRONG for one in found):
        raise typer.Exit(1)


def epochs(
    pipeline: One = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    before: Annotated[int | None, typer.Option(min=1, help="Only epochs before this one.")] = None,
    url: Url = _URL,
    token_file: TokenFile = None,
    ca: Ca = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Show the newest epochs of a pipeline: ranges, rows, times, and which sinks have acknowledged."""
    client = _client(url, token_file, ca, insecure)
    (name,) = _chosen(client, pipeline, several=False)
    found = client.get("pipelines", name, "epochs", limit=limit, before=before)["epochs"]
    print_json(found) if as_json else _print_epochs(found)


def page(url: Url = _URL, token_file: TokenFile = None, ca: Ca = None, insecure: Insecure = False) -> None:
    """Print a link to the status page that logs a browser in: for this user alone, until the daemon ends."""
    from onefold.daemon.access.proof import PRIVATELY

    typer.echo(_client(url, token_file, ca, insecure).page())
    if not url.startswith("https:"):
        typer.echo(PRIVATELY, err=True)


def pause(
    pipelines: Names = None, url: Url = _URL, token_file: TokenFile = None, ca: Ca = None, insecure: Insecure = False
) -> None:
    """Begin no further epoch, until `onefold resume`. The one that runs is finished."""
    _act("pause", pipelines, _client(url, token_file, ca, insecure))


def resume(
    pipelines: Names = None, url: Url = _URL, token_file: TokenFile = None, ca: Ca = None, insecure: Insecure = False
) -> None:
    """Begin epochs again, after `onefold pause`."""
    _act("resume", pipelines, _client(url, token_file, ca, insecure))


def stop(
    pipelines: Names = None,
    url: Url = _URL,
    token_file: TokenFile = None,
    ca: Ca = None,
    insecure: Insecure = False,
    within: Within = 90,
) -> None:
    """End pipelines with their epochs complete, and wait for that. The daemon stays, and can start them again.
    Exit code 1 where one has failed or was fenced instead, or runs again, since a restart took that back."""
    client = _client(url, token_file, ca, insecure)
    _wait(client, _act("stop", pipelines, client), within, _AT_REST, (*_AT_WORK, *_WRONG))


def restart(
    pipelines: Names = None,
    url: Url = _URL,
    token_file: TokenFile = None,
    ca: Ca = None,
    insecure: Insecure = False,
    within: Within = 90,
) -> None:
    """End pipelines with their epochs complete, if they run, start them again, and wait until they run.
    Exit code 1 where one fails or is fenced, or is stopped, since a stop took that back."""
    client = _client(url, token_file, ca, insecure)
    _wait(client, _act("restart", pipelines, client), within, (*_AT_WORK, "finished"), ("stopped", *_WRONG))


def _client(url: str, token_file: Path | None, ca: Path | None, insecure: bool) -> Client:
    from onefold.daemon.client import Client

    return Client(url, token_file, ca, insecure)


def _act(action: str, pipelines: Sequence[str] | None, client: Client) -> list[str]:
    names = _chosen(client, pipelines, several=True)
    for name in names:
        state = client.post("pipelines", name, action)["state"]
        typer.echo(f"{plain(name)}: {state}")
    return names


def _wait(client: Client, names: Sequence[str], within_s: float, wanted: Sequence[str], others: Sequence[str]) -> None:
    """Until each is in a state that is `wanted`; or in one of the `others`, which is the end of waiting, too."""
    wait, states = Wait(within_s, pause_s=0.1), []
    for name in names:
        while (state := client.get("pipelines", name)["state"]) not in (*wanted, *others):
            if not wait.again():
                raise Retriable(
                    "pipeline-not-there-yet",
                    f"pipeline {name!r} is {state} after {within_s:g} s. It goes on: look with `onefold status`",
                )
        is_taken_back = state in others and state not in _WRONG
        typer.echo(f"{plain(name)}: {state}{', as somebody asked meanwhile' if is_taken_back else ''}")
        states.append(state)
    if any(state in others for state in states):
        raise typer.Exit(1)


def _chosen(client: Client, pipelines: Sequence[str] | None, several: bool) -> list[str]:
    """The pipelines that are named; the daemon's only one where none is."""
    names = _names(pipelines or [])
    known = [] if names else [one["name"] for one in client.get("pipelines")]
    if len(names or known) == 1 or (names and several):
        return names or known
    raise ConfigError(
        "option-missing",
        f"name {'the pipeline' if known else 'one pipeline'}: {plain(', '.join(names or known))}",
    )


def _names(pipelines: Sequence[str]) -> list[str]:
    """Of files that define pipelines their names."""
    from onefold.pipeline import read

    return [read(each).name if each.endswith(".toml") or ":" in each else each for each in pipelines]


def _behind(found: dict[str, int] | None) -> str:
    """Records as a number, what else is counted with its name."""
    if not found:
        return _number(None)
    return ", ".join(_number(count) if unit == "record" else counted(count, unit) for unit, count in found.items())


def _print_pipelines(found: Sequence[dict[str, Any]]) -> None:
    table = _table("pipeline", "state", "generation", "epoch", "completed", "behind", "in doubt", "restarts")
    for one in found:
        completed = one["latest"]["completed"]
        table.add_row(
            escape(plain(one["name"])),
            _coloured(one["state"]),
            _number(one["generation"]),
            _number(one["epoch"]),
            _time(completed and completed["completed_at"]),
            _behind(one["behind"]),
            _number(one["in_doubt"]),
            _number(one["restarts"]),
        )
    console = table_console()
    console.print(table)
    for one in found:
        if (running := one["running"]) is not None and (took_s := _since_s(running["since"])) > _SLOW_S:
            waits = f", and waits for {'; '.join(running['waits_for'][:_NAMED])}" if running["waits_for"] else ""
            told = f"{one['name']}: epoch {running['epoch']:,} runs for {took_s:.0f} s ({running['step']}){waits}"
            console.print(escape(plain(told, SAID_MAX)), highlight=False)
        for key, done in (("savepoint", "made"), ("savepoint_restored", "restored")):
            if (savepoint := one["latest"][key]) is not None:
                of = f"{plain(savepoint['name'])}, of epoch {savepoint['epoch']:,}"
                console.print(
                    escape(f"{plain(one['name'])}: savepoint {of}, was {done} {_time(savepoint['at'])}"),
                    highlight=False,
                )
        if (error := one["error"] or one["store_error"]) is not None:
            said = f"{plain(one['name'])}: {plain(error['message'], SAID_MAX)} [{error['code']}]"
            console.print(escape(said))


def _since_s(text: str) -> float:
    return time.time() - datetime.fromisoformat(text).timestamp()


def _print_epochs(found: Sequence[dict[str, Any]]) -> None:
    table = _table("epoch", "state", "generation", "opened", "took", "mostly", "rows", "bytes", "acknowledged by")
    for one in found:
        acknowledged = [sink["name"] for sink in one["sinks"] if sink["state"] == "acknowledged"]
        took_s = one["duration_s"]
        table.add_row(
            str(one["epoch"]),
            _coloured(one["state"]),
            str(one["generation"]),
            _time(one["opened_at"]),
            "" if took_s is None else f"{took_s:.1f} s",
            _longest(one["steps"] or {}),
            _number(one["rows"]),
            _number(one["bytes"]),
            escape(plain(", ".join(acknowledged))),
        )
    table_console().print(table if found else "no epochs yet")


def _longest(steps: dict[str, float | None]) -> str:
    """The step that took the most of the time from an epoch's opening on."""
    known = {name: took_s for name, took_s in steps.items() if took_s is not None and name != "wait_s"}
    name, took_s = max(known.items(), key=itemgetter(1), default=("", 0.0))
    return f"{name.removesuffix('_s')} {took_s:.1f} s" if known else ""


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state)
    return escape(state) if colour is None else f"[{colour}]{escape(state)}[/]"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _time(text: str | None) -> str:
    return "" if text is None else datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
