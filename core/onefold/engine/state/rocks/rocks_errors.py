"""Errors of a database by their names: rocksdict raises Python's plain `Exception` for all that RocksDB says."""

from __future__ import annotations

import os
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from onefold.core.errors import OnefoldError, OutOfResources, Retriable

__all__ = ["Naming"]

_FULL = tuple(map(os.strerror, (ENOSPC, EDQUOT, EFBIG)))


class Naming:
    """A context in which a database in `folder` is used. Raises OutOfResources where its disk is full, Retriable for
    what else becomes of it there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and (kind is Exception or issubclass(kind, OSError)):
            raise _named(self._folder, str(error)) from error


def _named(folder: Path, told: str) -> OnefoldError:
    if any(full in told for full in _FULL):
        return OutOfResources(
            "state-disk-full",
            f"the RocksDB of a worker in {folder} cannot be written: {told}. No decided snapshot is touched by it."
            " Make room there, or name a folder of a larger disk in TMPDIR",
        )
    return Retriable(
        "state-database-failed",
        f"the RocksDB of a worker in {folder} has failed: {told}. It begins anew from the last decided snapshot; where"
        " it fails again, look after the disk of that folder (TMPDIR)",
    )
