"""The invariants' verdicts, as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["add_verdicts", "print_violations"]

Verdicts = Mapping[str, Sequence[str]]


def add_verdicts(table: Table, verdicts: Verdicts) -> None:
    """One row for each invariant: how many violations were found."""
    for name, found in verdicts.items():
        table.add_row(name, f"[red]{len(found):,} violations[/]" if found else "[green]holds[/]")


def print_violations(console: Console, verdicts: Verdicts) -> None:
    for name, found in verdicts.items():
        for text in found:
            console.print(f"{name}: {text}", highlight=False, markup=False)
