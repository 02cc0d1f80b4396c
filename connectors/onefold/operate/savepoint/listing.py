"""Finds savepoints, and says which of them are damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from onefold.cli.shown import shown
from onefold.core import ConfigError, OnefoldError
from onefold.core.values.plain import plain, shown_url
from onefold.operate.savepoint.create import PARTIAL
from onefold.operate.savepoint.files import FileSystem
from onefold.operate.savepoint.reading import Damage, read_copy, read_savepoint
from onefold.operate.savepoint.savepoint import Savepoint

__all__ = ["ListedSavepoint", "as_json", "find", "listed", "print_savepoints"]


_WIDTH = 96  # from which a time has room on one line, beside a name of some length


@dataclass(frozen=True, slots=True)
class ListedSavepoint:
    """A folder that should be a savepoint's. `damage` says what is wrong with it, `unreadable` why that cannot be said
    now; both are None where it is whole."""

    name: str
    savepoint: Savepoint | None
    damage: str | None = None
    unreadable: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.damage is None and self.unreadable is None

    @property
    def verdict(self) -> str:
        if self.damage is not None:
            return "DAMAGED"
        return "whole" if self.unreadable is None else "UNREADABLE"


def listed(files: FileSystem, folder: str) -> list[ListedSavepoint]:
    """All in the folder, the oldest first. Reads every file. Hidden folders and those of a `create` that was cut short
    are left out."""
    names = [name for name in files.names(folder) if not name.startswith(".") and not name.endswith(PARTIAL)]
    found = [_listed(files, f"{folder}/{name}", name) for name in names]
    return sorted(found, key=lambda each: "" if each.savepoint is None else each.savepoint.made_at)


def find(files: FileSystem, folder: str, name: str) -> Savepoint:
    """Raises ConfigError for one that is not there, or whose description is damaged; its copy is not read."""
    is_name = name not in ("", ".", "..") and "/" not in name and not name.endswith(PARTIAL)
    if not is_name or not files.exists(f"{folder}/{name}"):
        there = [plain(each) for each in files.names(folder) if not each.endswith(PARTIAL)]
        known = f"there are {', '.join(there)}" if there else "there is none"
        raise ConfigError("savepoint-missing", f"there is no savepoint {name!r} in {shown_url(folder)}; {known}")
    try:
        return read_savepoint(files, f"{folder}/{name}")
    except Damage as damage:
        raise ConfigError(
            "savepoint-damaged",
            f"savepoint {name!r} in {shown_url(folder)} is damaged: {plain(str(damage))}. Use another one",
        ) from damage


def _listed(files: FileSystem, place: str, name: str) -> ListedSavepoint:
    savepoint = None
    try:
        savepoint = read_savepoint(files, place)
        for file in savepoint.files:
            for _ in read_copy(files, place, file):
                pass
    except Damage as damage:
        return ListedSavepoint(name, savepoint, damage=str(damage))
    except OnefoldError as error:
        return ListedSavepoint(name, savepoint, unreadable=error.message)
    return ListedSavepoint(name, savepoint)


def as_json(found: Iterable[ListedSavepoint]) -> str:
    def values(each: ListedSavepoint) -> dict[str, Any]:
        savepoint = json.loads(each.savepoint.to_json()) if each.savepoint is not None else {}
        savepoint.pop("files", None)
        size = {} if each.savepoint is None else {"bytes": each.savepoint.bytes, "files": len(each.savepoint.files)}
        return savepoint | size | {"name": each.name, "damage": each.damage, "unreadable": each.unreadable}

    return json.dumps([values(each) for each in found], indent=2)


def print_savepoints(console: Console, found: Sequence[ListedSavepoint]) -> None:
    """A table, and below it what is wrong with each that is not whole."""
    table, between = Table(), " " if console.width >= _WIDTH else "\n"
    for column in ("savepoint", "made at", "epoch", "state", "partitions", "size", ""):
        justify: Literal["left", "right"] = "right" if column in ("epoch", "partitions", "size") else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column == "made at")
    for each in found:
        of = each.savepoint
        if of is None:
            table.add_row(shown(each.name), "", "", "", "", "", shown(each.verdict))
            continue
        state = "none" if of.provider is None else of.provider.rpartition(".")[2].removesuffix("StateStoreProvider")
        partitions = "" if of.provider is None else str(of.partitions)
        table.add_row(
            shown(each.name),
            _time(of, between),
            *map(shown, (of.epoch, state, partitions, f"{of.bytes:,} bytes", each.verdict)),
        )
    console.print(table)
    for each in found:
        if not each.is_whole:
            says = f"{each.name}: {each.verdict}: {each.damage or each.unreadable}"
            console.print(shown(says), highlight=False, soft_wrap=True)


def _time(savepoint: Savepoint, between: str) -> str:
    """As other commands show a time; what is none, as it is."""
    try:
        at = datetime.fromisoformat(savepoint.made_at).astimezone(UTC)
    except ValueError:
        return shown(savepoint.made_at)
    return f"{at:%Y-%m-%d}{between}{at:%H:%M:%S} UTC"
