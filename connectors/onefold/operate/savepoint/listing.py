"""Finds and reads savepoints, and says which of them are damaged.

What is missing or is another content is damage, for good; what cannot be read now, though it is there, is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from onefold.clients.files import FileSystem
from onefold.core import ConfigError, OnefoldError, Retriable
from onefold.core.values.plain import plain, shown_url
from onefold.operate.savepoint.savepoint import CHECKPOINT, DESCRIPTION, PARTIAL, CopiedFile, Savepoint

__all__ = ["Counted", "ListedSavepoint", "find", "listed", "read_copy"]

DESCRIPTION_BYTES_MAX = 64 << 20  # of some 400,000 files


class Damage(ValueError):
    """A savepoint is damaged: which file, and how."""


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
        return _read_savepoint(files, f"{folder}/{name}")
    except Damage as damage:
        raise ConfigError(
            "savepoint-damaged",
            f"savepoint {name!r} in {shown_url(folder)} is damaged: {plain(str(damage))}. Use another one",
        ) from damage


def _listed(files: FileSystem, place: str, name: str) -> ListedSavepoint:
    savepoint = None
    try:
        savepoint = _read_savepoint(files, place)
        for file in savepoint.files:
            for _ in read_copy(files, place, file):
                pass
    except Damage as damage:
        return ListedSavepoint(name, savepoint, damage=str(damage))
    except OnefoldError as error:
        return ListedSavepoint(name, savepoint, unreadable=error.message)
    return ListedSavepoint(name, savepoint)


class Counted:
    """How many bytes went through `of`, and their SHA-256."""

    def __init__(self) -> None:
        self.bytes = 0
        self._hash = hashlib.sha256()

    def of(self, content: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in content:
            self.bytes += len(chunk)
            self._hash.update(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _read_savepoint(files: FileSystem, place: str) -> Savepoint:
    """By its description; its copy is not read. Raises Damage, and Retriable where it cannot be read now."""
    content = b"".join(_read(files, place, DESCRIPTION, DESCRIPTION_BYTES_MAX))
    try:
        return Savepoint.from_json(content.decode())
    except ValueError as error:
        raise Damage(f"{DESCRIPTION}: {error}") from error


def read_copy(files: FileSystem, place: str, file: CopiedFile) -> Iterator[bytes]:
    """A file of the checkpoint. Raises Damage, at the end where the content is another one; Retriable where it cannot
    be read now."""
    count = Counted()
    yield from count.of(_read(files, place, f"{CHECKPOINT}/{file.path}", file.bytes))
    if count.sha256 != file.sha256:
        raise Damage(f"{file.path} is not what was copied")


def _read(files: FileSystem, place: str, path: str, bytes_max: int) -> Iterator[bytes]:
    """What is longer was changed, and may have no end."""
    left = bytes_max
    try:
        for chunk in files.read(place, path):
            left -= len(chunk)
            if left < 0:
                raise Damage(f"{path} is longer than what was written")
            yield chunk
    except Retriable as error:
        if files.exists(f"{place}/{path}"):
            raise
        raise Damage(f"{path} is missing") from error
