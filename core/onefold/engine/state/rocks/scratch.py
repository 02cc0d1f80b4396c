"""The folder of a driver for its workers' databases, which need not outlive it.

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
from pathlib import Path

from onefold.engine.state.rocks.rocks_errors import Naming

__all__ = ["Scratch", "scratch"]

_PREFIX = "onefold-rocksdb-"


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
