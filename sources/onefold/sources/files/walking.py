"""Walks a folder of this machine: regular files, without links, whatever vanishes or cannot be read meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator

from onefold.core.values.plain import plain

__all__ = ["Walk", "is_hidden"]

log = logging.getLogger("onefold")

_VANISHED = (errno.ENOENT, errno.ENOTDIR)
_PASSED_OVER = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name, without what is above it, is none that is read."""
    return name[:1] in ("_", ".")


class Walk:
    """Walks of one folder. What it passes over is told once of each kind, in the log."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._told: set[str] = set()

    def files(self) -> Iterator[tuple[str, int, int]]:
        """The files by their names within the folder, with size and time in nanoseconds. Raises OSError where the
        folder itself cannot be listed, and where the filesystem fails."""
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(f"{self._root}/{folder}") as entries:
                    found = [*self._regular(folder, entries, folders)]
            except OSError as error:
                if not folder or error.errno not in (*_VANISHED, *_PASSED_OVER):
                    raise
                if error.errno in _PASSED_OVER:
                    self._tell(f"folders that cannot be listed are passed over ({error.strerror})", folder)
            else:
                yield from found

    def _regular(
        self, folder: str, entries: Iterable[os.DirEntry[str]], folders: list[str]
    ) -> Iterator[tuple[str, int, int]]:
        for entry in entries:
            if entry.name[0] in "._":
                continue
            name = folder + entry.name
            if not _is_utf8(entry.name):
                self._tell("names that are not UTF-8 are passed over: rename such files and folders", name)
            elif entry.is_symlink():
                self._tell("links are not followed: name the folder itself as path=, or move the file here", name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(f"{name}/")
            else:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(found.st_mode):
                    yield name, found.st_size, found.st_mtime_ns

    def _tell(self, what: str, name: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s: %s. The first one is %s", plain(self._root), what, plain(name))


def _is_utf8(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
