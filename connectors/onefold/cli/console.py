"""Arguments that several commands have, and how commands print what they found."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onefold.core.values.plain import SAID_MAX, plain
from onefold.pipeline.secrets import filled

Named = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="orders.toml, or jobs/orders.py:pipeline, or package.module:pipeline.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AsHtml = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report as one HTML page.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Also where it may be running: FENCES its driver if it is alive.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]

_PIPE_COLUMNS = 400  # one line for each row of a table, for those who read it by program


def comma_separated(text: str) -> list[str]:
    """The parts between commas; none of an empty text."""
    return [name.strip() for name in text.split(",")] if text else []


def resolved(text: str | None) -> str | None:
    """An option with its secrets, which are named as in a pipeline's file: `ps` shows what is on the command line.
    Raises ConfigError for one that is not there."""
    return None if text is None else str(filled(text, Path()))


def shown(text: object) -> str:
    """The text on one line, with nothing in it that a terminal, or rich, takes for more than characters."""
    return escape(plain(str(text), SAID_MAX))


def confirm(question: str, yes: Yes) -> None:
    """Ask, unless that is answered already. The command ends where the answer is no."""
    if not yes:
        typer.confirm(question, abort=True)


def say(text: object) -> None:
    """Print a line of text, which may be of files, databases and other processes."""
    Console(soft_wrap=True, emoji=False).print(shown(text), highlight=False)


def table_console() -> Console:
    """As wide as the terminal, and as the text where there is none."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, emoji=False)


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def add_verdicts(table: Table, verdicts: Mapping[str, Sequence[str]]) -> None:
    for name, found in verdicts.items():
        table.add_row(name, f"[red]{len(found):,} violations[/]" if found else "[green]holds[/]")


def print_violations(console: Console, verdicts: Mapping[str, Sequence[str]]) -> None:
    for name, found in verdicts.items():
        for text in found:
            console.print(f"{name}: {text}", highlight=False, markup=False)
