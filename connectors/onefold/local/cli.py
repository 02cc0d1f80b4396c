"""`onefold local up|down|status|env`."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

import onefold.local as servers  # which imports a server when it is named: `onefold --help` needs none
from onefold.core.errors import OnefoldError

if TYPE_CHECKING:
    from onefold.local import HBaseServer, LocalServer, ServerStatus

app = typer.Typer(help="Kafka, Postgres, HBase and MariaDB on this machine, without containers.", no_args_is_help=True)


class Name(enum.StrEnum):
    kafka = "kafka"
    postgres = "postgres"
    hbase = "hbase"
    mariadb = "mariadb"


# HBase is two JVMs more, and MariaDB may have to be downloaded by the system's package manager.
_STARTED_UNASKED = [Name.kafka, Name.postgres]
ToStart = Annotated[list[Name] | None, typer.Argument(help="Which servers; Kafka and Postgres if none is named.")]
Names = Annotated[list[Name] | None, typer.Argument(help="Which servers; all if none is named.")]
Directory = Annotated[Path, typer.Option("--dir", help="Where data, logs and state are kept.")]
KafkaPort = Annotated[int | None, typer.Option(min=1, max=65535, help="A free one if not given.")]
PostgresPort = Annotated[int | None, typer.Option(min=1, max=65535, help="A free one if not given.")]
HBasePort = Annotated[
    int | None, typer.Option("--hbase-port", min=1, max=65535, help="Of its Thrift2 server; a free one if not given.")
]
HappyBase = Annotated[bool, typer.Option("--thrift1", help="HBase with a Thrift1 server too, as happybase needs.")]
MariaDbPort = Annotated[int | None, typer.Option("--mariadb-port", min=1, max=65535, help="A free one if not given.")]
_DIRECTORY = Path(".onefold/local")


@app.command()
def up(
    names: ToStart = None,
    directory: Directory = _DIRECTORY,
    kafka_port: KafkaPort = None,
    postgres_port: PostgresPort = None,
    hbase_port: HBasePort = None,
    thrift1: HappyBase = False,
    mariadb_port: MariaDbPort = None,
) -> None:
    """Start servers; those that run already are kept as they are."""
    with _errors_in_red():
        known: dict[Name, LocalServer | HBaseServer] = {
            Name.kafka: servers.KafkaServer(directory, kafka_port),
            Name.postgres: servers.PostgresServer(directory, postgres_port),
            Name.hbase: servers.HBaseServer(directory, hbase_port, thrift1=thrift1),
            Name.mariadb: servers.MariaDbServer(directory, mariadb_port),
        }
        for server in (known[name] for name in dict.fromkeys(names or _STARTED_UNASKED)):
            with _progress(f"{server.name}: starting") as progress:
                status = server.start(progress)
            _say(status)
            Console(soft_wrap=True).print(f"  {escape(server.access)}", style="dim")


@app.command()
def down(names: Names = None, directory: Directory = _DIRECTORY) -> None:
    """Stop servers that `up` started here; no other process is touched, and data are kept."""
    with _errors_in_red():
        for server in _servers(names, directory):
            pid = server.status().pid
            with _progress(f"{server.name}: stopping"):
                stopped = server.stop()
            detail = f"stopped (process {pid})" if stopped else "was not running"
            Console(soft_wrap=True).print(f"[bold]{server.name}[/] {detail}")


@app.command()
def status(names: Names = None, directory: Directory = _DIRECTORY) -> None:
    """Show which servers run, where they listen and where they log."""
    with _errors_in_red():
        for server in _servers(names, directory):
            _say(server.status())


@app.command()
def env(names: Names = None, directory: Directory = _DIRECTORY) -> None:
    """Print the addresses of servers that run as commands of a shell, for pipelines that name them as ${KAFKA},
    ${POSTGRES}, ${HBASE} and ${MARIADB}: eval "$(onefold local env)"."""
    with _errors_in_red():
        found = [server.status() for server in _servers(names, directory)]
        running = [one for one in found if one.running and one.address is not None]
        if not running:
            raise servers.LocalServerError(
                "local-server-stopped", f"no server of {directory} runs: start some with onefold local up"
            )
        for one in running:
            typer.echo(f"export {one.name.upper()}={shlex.quote(one.address or '')}")


def _servers(names: list[Name] | None, directory: Path) -> Iterator[LocalServer | HBaseServer]:
    kinds: dict[Name, type[LocalServer | HBaseServer]] = {
        Name.kafka: servers.KafkaServer,
        Name.postgres: servers.PostgresServer,
        Name.hbase: servers.HBaseServer,
        Name.mariadb: servers.MariaDbServer,
    }
    for name in dict.fromkeys(names or list(Name)):
        yield kinds[name](directory)


def _say(found: ServerStatus) -> None:
    """Lines that are broken by the terminal alone: an address is copied as it is."""
    console = Console(soft_wrap=True)
    address = f": [green]{escape(found.address)}[/]" if found.address else ""
    console.print(f"[bold]{found.name}[/] {escape(found.detail)}{address}")
    about = [f"process {found.pid}"] if found.pid else []
    about += [f"log {escape(str(found.log))}"] if found.log.exists() else []
    if about:
        console.print(f"  {', '.join(about)}", style="dim")


class CountColumn(MofNCompleteColumn):
    """How far it is, where that is known: of a download, and not of a start."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


@contextmanager
def _progress(doing: str) -> Iterator[Progress]:
    """On stderr and only for people, so that what the command answers can be piped."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        CountColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(doing, total=None)
        yield progress


@contextmanager
def _errors_in_red() -> Iterator[None]:
    try:
        yield
    except OnefoldError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]{escape(str(error))}[/]", highlight=False)
        raise typer.Exit(error.exit_code) from None
