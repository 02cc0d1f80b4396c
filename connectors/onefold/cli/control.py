"""What the commands ask of the daemon, and print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli.arguments import AsJson
from onefold.core import ConfigError, Retriable
from onefold.core.values.plain import plain
from onefold.core.waiting import Wait

if TYPE_CHECKING:
    from onefold.daemon.client import Client

__all__ = ["PRIVATELY", "epochs", "page", "pause", "restart", "resume", "status", "stop"]

PRIVATELY = (
    "Where others use the daemon's machine, open it in a private window: who listened there while the daemon was down"
    " may have left a program in this browser, which would get the key."
)
_WRONG = ("failed", "fenced")
_AT_WORK = ("running", "paused")
_AT_REST = ("stopped", "finished")

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


def status(
    pipelines: Names = None,
    url: Url = _URL,
    token_file: TokenFile = None,
    ca: Ca = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Show the pipelines of a running daemon. Exit code 1 where one has failed or was fenced."""
    from onefold.cli.control_tables import print_pipelines

    client = _client(url, token_file, ca, insecure)
    found = [client.get("pipelines", name) for name in _names(pipelines)] if pipelines else client.get("pipelines")
    _print_json(found) if as_json else print_pipelines(found)
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
    from onefold.cli.control_tables import print_epochs

    client = _client(url, token_file, ca, insecure)
    (name,) = _chosen(client, pipeline, several=False)
    found = client.get("pipelines", name, "epochs", limit=limit, before=before)["epochs"]
    _print_json(found) if as_json else print_epochs(found)


def page(url: Url = _URL, token_file: TokenFile = None, ca: Ca = None, insecure: Insecure = False) -> None:
    """Print a link to the status page that logs a browser in: for this user alone, until the daemon ends."""
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


def _print_json(found: object) -> None:
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")
