"""Reads a savepoint, and judges whether it is what was written.

What is missing or is another content is damage, for good; what cannot be read now, though it is there, is not."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.core import Retriable
from onefold.operate.savepoint.create import Counted
from onefold.operate.savepoint.files import FileSystem
from onefold.operate.savepoint.savepoint import CHECKPOINT, DESCRIPTION, CopiedFile, Savepoint

__all__ = ["Damage", "read_copy", "read_savepoint"]

DESCRIPTION_BYTES_MAX = 64 << 20  # of some 400,000 files


class Damage(ValueError):
    """A savepoint is damaged: which file, and how."""


def read_savepoint(files: FileSystem, place: str) -> Savepoint:
    """By its description; its copy is not read. Raises Damage, and Retriable where it cannot be read now."""
    content = b"".join(_up_to(DESCRIPTION_BYTES_MAX, DESCRIPTION, _read(files, place, DESCRIPTION)))
    try:
        return Savepoint.from_json(content.decode())
    except ValueError as error:
        raise Damage(f"{DESCRIPTION}: {error}") from error


def read_copy(files: FileSystem, place: str, file: CopiedFile) -> Iterator[bytes]:
    """A file of the checkpoint. Raises Damage, at the end where the content is another one; Retriable where it cannot
    be read now."""
    count = Counted()
    yield from count.of(_up_to(file.bytes, file.path, _read(files, place, f"{CHECKPOINT}/{file.path}")))
    if count.sha256 != file.sha256:
        raise Damage(f"{file.path} is not what was copied")


def _up_to(bytes_max: int, path: str, content: Iterator[bytes]) -> Iterator[bytes]:
    """What is longer was changed, and may have no end."""
    left = bytes_max
    for chunk in content:
        left -= len(chunk)
        if left < 0:
            raise Damage(f"{path} is longer than what was written")
        yield chunk


def _read(files: FileSystem, place: str, path: str) -> Iterator[bytes]:
    try:
        yield from files.read(place, path)
    except Retriable as error:
        if files.exists(f"{place}/{path}"):
            raise
        raise Damage(f"{path} is missing") from error
