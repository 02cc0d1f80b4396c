"""Temporary folders of commands: Spark's scratch files, a JVM's log. A process that is killed leaves its own behind,
and the next one removes it.

Each has a locked file as long as its process lives. The kernel lets go of the lock with the process, however that ends;
a process's number says less, since containers that share a folder each count their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from onefold.spark.errors.failures import disk_full

__all__ = ["LOCK", "temporary_folder"]

LOCK = "onefold.lock"


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder that is removed at the end, and before it those of this prefix and user whose process was killed.

    Raises OutOfResources where there is no room for one.
    """
    with ExitStack() as stack:
        try:
            _remove_abandoned(Path(tempfile.gettempdir()), prefix)
            made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            stack.enter_context(_locked(folder))
        except OSError as error:  # that no folder is usable is a FileNotFoundError
            raise disk_full(str(error)) from error
        yield folder


def _locked(folder: Path) -> FileIO:
    """The folder's lock. It has its name only when it is held: nobody finds one that is not."""
    new = folder / f"{LOCK}.new"
    file = FileIO(new, "x")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / LOCK)
    except BaseException:
        file.close()
        raise
    return file


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """What cannot be removed now is left to the next command."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
                continue  # in a folder that all share, others may give a link any name
            with FileIO(folder / LOCK, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in folder.iterdir():
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    elif path.name != LOCK:
                        path.unlink()
                shutil.rmtree(folder)  # the lock goes last: without it the rest would be taken for another's
