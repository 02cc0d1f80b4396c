"""Folders of databases: the driver's, which need not outlive it, and errors of a database in one, by their names.

rocksdict raises Python's plain `Exception` for all that RocksDB says.

A driver that is killed cannot remove its folder, so the next start on this machine does, of whichever flow: it tells by
a lock, which the system takes from a process that ends, also where both have process ids of their own (containers).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from onefold.core.errors import OnefoldError, OutOfResources, Retriable

_PREFIX = "onefold-rocksdb-"
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


class Scratch:
    """A folder with one of each database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def empty(self) -> None:
        """What workers that have ended left in it."""
        for left in self.folder.iterdir():
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def scratch() -> Iterator[Scratch]:
    """A new one in the folder for temporary files (TMPDIR), which goes with the block."""
    with Naming(Path(os.environ.get("TMPDIR", "/tmp"))):
        home = Path(tempfile.gettempdir())
        _sweep(home)
        folder, lock = _made(home)
    try:
        yield Scratch(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made(home: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))  # only this user may enter it
        try:
            lock = _opened(folder)
        except FileNotFoundError:  # swept before it was locked, by a start beside this one
            continue
        with suppress(OSError):  # where the file system has no locks, no start sweeps it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def _sweep(home: Path) -> None:
    """Remove this user's folders whose drivers have ended."""
    for folder in home.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its driver has it, or it goes meanwhile, or is no folder, or may not be opened
            lock = _opened(folder)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _opened(folder: Path) -> int:
    """Links are not followed."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
