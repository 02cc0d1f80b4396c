"""`onefold run`."""

from __future__ import annotations

import logging
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from onefold.core import ConfigError, Fenced

_TAKEN_OVER = "another process has taken the pipeline over: this one is not to be started again"


def run(
    pipelines: Annotated[
        list[str], typer.Argument(metavar="PIPELINE...", help="orders.toml, or jobs/orders.py:pipeline; one or more.")
    ],
    json_logs: Annotated[
        bool | None, typer.Option("--json-logs/--text-logs", help="By default JSON where stderr is no terminal.")
    ] = None,
    listen: Annotated[
        str, typer.Option(envvar="ONEFOLD_LISTEN", help="HOST:PORT of the HTTP API; none: without it.")
    ] = "127.0.0.1:8417",
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ONEFOLD_TOKEN_FILE",
            help="The file with the API's token: who has it may ask and operate. Without one, this user's own.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The API's certificate, with its chain: PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key: PEM, not encrypted.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let the token cross the network in clear.")] = False,
) -> None:
    """Run pipelines until they are stopped, and start them again where they fail for a reason that may pass. SIGTERM
    and Ctrl-C end them with their epochs complete: exit code 0. Their state, and what to do with them, is on HTTP."""
    from onefold.daemon.access.proof import PRIVATELY
    from onefold.daemon.api.listening import Listening
    from onefold.daemon.api.serving import answering
    from onefold.daemon.control import Controls
    from onefold.daemon.hosting.hosts import Hosts
    from onefold.daemon.hosting.logs import log_as_json
    from onefold.daemon.service import serve, stop_signals
    from onefold.engine.workers.fork_server import fill_standard_streams
    from onefold.pipeline import read
    from onefold.store.job.logs import show_progress

    fill_standard_streams()  # for the hosts, too
    found = [read(named) for named in pipelines]
    names = [pipeline.name for pipeline in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError("pipeline-twice", f"pipeline {twice!r} is named twice: it would fence itself")
    places = [pipeline.checkpoint for pipeline in found]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise ConfigError("checkpoint-twice", f"two pipelines have the checkpoint {twice}: each needs its own")
    listening = None if listen == "none" else Listening.of(listen, token_file, tls_cert, tls_key, insecure)
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_json = not is_terminal if json_logs is None else json_logs
    if is_json:
        log_as_json()
    else:
        show_progress()
    hosts = Hosts(found, "json" if is_json else "text")
    logging.getLogger().addHandler(hosts.tail)
    controls = Controls(found, hosts)
    with (
        stop_signals(hosts.kill) as asked,  # until the hosts have ended, too
        closing(hosts),
        answering(controls, listening) if listening is not None else nullcontext() as answers,
    ):
        if answers is not None and is_terminal and not is_json:
            typer.echo(f"The status page: {answers.page}", err=True)
            if tls_cert is None:
                typer.echo(PRIVATELY, err=True)
        code = serve(controls, asked)
    if code == Fenced.exit_code:
        typer.echo(_TAKEN_OVER, err=True)
    if code:
        raise typer.Exit(code)
