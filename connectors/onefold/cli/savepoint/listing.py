"""Finds savepoints, and says which of them are damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onefold.cli.savepoint.create import PARTIAL, Counted
from onefold.cli.savepoint.files import Files
from onefold.cli.savepoint.savepoint import CHECKPOINT, DESCRIPTION, Savepoint
from onefold.core import ConfigError, OnefoldError

__all__ = ["Listed", "as_json", "find", "listed", "print_savepoints", "read_savepoint"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A folder that should be a savepoint's. `damage` says what is wrong with it; None where it is whole."""

    name: str
    savepoint: Savepoint | None
    damage: str | None


def listed(files: Files, folder: str) -> list[Listed]:
    """All in the folder, the oldest first. Reads every file. Hidden folders and those of a `create` that was cut short
    are left out."""
    names = [name for name in files.names(folder) if not name.startswith(".") and not name.endswith(PARTIAL)]
    found = [_listed(files, f"{folder}/{name}", name) for name in names]
    return sorted(found, key=lambda each: "" if each.savepoint is None else each.savepoint.made_at)


def find(files: Files, folder: str, name: str) -> Savepoint:
    """Raises ConfigError for one that is not there, or whose description is damaged; its copy is not read."""
    if not name or name in (".", "..") or "/" in name or not files.exists(f"{folder}/{name}/{DESCRIPTION}"):
        there = [each for each in files.names(folder) if not each.endswith(PARTIAL)]
        known = f"there are {', '.join(there)}" if there else "there is none"
        raise ConfigError("savepoint-missing", f"there is no savepoint {name!r} in {folder}; {known}")
    try:
        return read_savepoint(files, f"{folder}/{name}")
    except ValueError as error:
        raise ConfigError(
            "savepoint-damaged", f"savepoint {name!r} in {folder} is damaged: {DESCRIPTION}: {error}. Use another one"
        ) from error


def read_savepoint(files: Files, place: str) -> Savepoint:
    """Raises ValueError where it is damaged."""
    return Savepoint.from_json(b"".join(files.read(f"{place}/{DESCRIPTION}")).decode())


def _listed(files: Files, place: str, name: str) -> Listed:
    try:
        savepoint = read_savepoint(files, place)
    except (ValueError, OnefoldError) as error:
        return Listed(name, None, f"{DESCRIPTION}: {error}")
    return Listed(name, savepoint, _damage(files, f"{place}/{CHECKPOINT}", savepoint))


def _damage(files: Files, root: str, savepoint: Savepoint) -> str | None:
    for file in savepoint.files:
        count = Counted()
        try:
            for _ in count.of(files.read(f"{root}/{file.path}")):
                pass
        except OnefoldError as error:
            return error.message
        if count.sha256 != file.sha256:
            return f"{file.path} is not what was copied"
    return None


def as_json(found: Iterable[Listed]) -> str:
    def values(each: Listed) -> dict[str, Any]:
        savepoint = json.loads(each.savepoint.to_json()) if each.savepoint is not None else {}
        savepoint.pop("files", None)
        size = {} if each.savepoint is None else {"bytes": each.savepoint.bytes, "files": len(each.savepoint.files)}
        return savepoint | size | {"name": each.name, "damage": each.damage}

    return json.dumps([values(each) for each in found], indent=2)


def print_savepoints(console: Console, found: Iterable[Listed]) -> None:
    table = Table()
    for column in ("savepoint", "made at", "epoch", "state", "partitions", "size", ""):
        table.add_column(column, justify="right" if column in ("epoch", "partitions", "size") else "left")
    for each in found:
        says = "whole" if each.damage is None else f"DAMAGED: {each.damage}"
        of = each.savepoint
        if of is None:
            table.add_row(escape(each.name), "", "", "", "", "", escape(says))
            continue
        state = "none" if of.provider is None else of.provider.rpartition(".")[2].removesuffix("StateStoreProvider")
        partitions = "" if of.provider is None else str(of.partitions)
        table.add_row(
            escape(each.name), of.made_at, str(of.epoch), state, partitions, f"{of.bytes:,} bytes", escape(says)
        )
    console.print(table)
