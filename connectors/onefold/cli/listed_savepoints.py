"""Savepoints as `onefold savepoint` shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from onefold.cli.console import shown
from onefold.core.values.plain import counted

if TYPE_CHECKING:
    from onefold.engine.savepoints.savepoint import ListedSavepoint, Savepoint

_WIDTH = 96  # from which a time has room on one line, beside a name of some length


def values(each: ListedSavepoint) -> dict[str, Any]:
    savepoint = json.loads(each.savepoint.to_json()) if each.savepoint is not None else {}
    savepoint.pop("files", None)
    size = {} if each.savepoint is None else {"bytes": each.savepoint.bytes, "files": len(each.savepoint.files)}
    return savepoint | size | {"name": each.name, "damage": each.damage, "unreadable": each.unreadable}


def print_savepoints(console: Console, found: Sequence[ListedSavepoint]) -> None:
    """A table, and below it what is wrong with each that is not whole."""
    table, between = Table(), " " if console.width >= _WIDTH else "\n"
    for column in ("savepoint", "made at", "epoch", "state", "size", ""):
        justify: Literal["left", "right"] = "right" if column in ("epoch", "size") else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column == "made at")
    for each in found:
        of = each.savepoint
        if of is None:
            table.add_row(shown(each.name), "", "", "", "", shown(each.verdict))
            continue
        row = of.epoch, _kept(of), f"{of.bytes:,} bytes", each.verdict
        table.add_row(shown(each.name), _time(of, between), *map(shown, row))
    console.print(table)
    for each in found:
        if not each.is_whole:
            says = f"{each.name}: {each.verdict}: {each.damage or each.unreadable}"
            console.print(shown(says), highlight=False, soft_wrap=True)


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: what it has no type for, as text."""
    return {name: value if isinstance(value, int | float | str | None) else str(value) for name, value in row.items()}


def _kept(savepoint: Savepoint) -> str:
    """What state it has, in a few words."""
    query = savepoint.query
    if savepoint.flow is not None and savepoint.keeps_state:
        return (
            f"{counted(sum(state.rows for state in savepoint.flow.states if state.name[:1] != '$'), 'row')} in tables"
        )
    if query is None or query.provider is None:
        return "none"
    return f"Spark's {query.provider.rpartition('.')[2].removesuffix('StateStoreProvider')}, {query.partitions} parts"


def _time(savepoint: Savepoint, between: str) -> str:
    """As other commands show a time; what is none, as it is."""
    try:
        at = datetime.fromisoformat(savepoint.made_at).astimezone(UTC)
    except ValueError:
        return shown(savepoint.made_at)
    return f"{at:%Y-%m-%d}{between}{at:%H:%M:%S} UTC"
