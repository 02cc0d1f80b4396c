"""What onefold believes of a SQLite file: that only its own user can change it, put another in its place, or lead it
elsewhere by a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import sqlalchemy as sa

from onefold.core.errors import ConfigError

__all__ = ["check_file", "check_whole_path"]

_BESIDE = ("", "-wal", "-shm", "-journal")  # SQLite believes what these say, too


def check_file(path: Path) -> None:
    """Raises ConfigError where another user can write to the file or its folder, or has made it. Root may."""
    for place in dict.fromkeys((path, path.resolve())):
        _check_folder(place)
        for ending in _BESIDE:
            _check_owner(Path(f"{place}{ending}"))


def check_whole_path(what: str, url: sa.URL) -> None:
    """Raises ConfigError for a SQLite file that would begin in the working directory, which is another one wherever
    somebody starts a command or a job: there would be one file in each."""
    path = url.database or ":memory:"
    if url.get_backend_name() == "sqlite" and not path.startswith((":memory:", "file:")) and path[0] != "/":
        raise ConfigError(
            "sqlite-relative",
            f"{what} names the SQLite file {path}, which would begin in the working directory: name its whole path, as"
            " sqlite:////srv/onefold/store.db",
        )


def _check_folder(path: Path) -> None:
    folder = path.parent
    if folder.exists() and folder.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(
            "folder-not-trusted",
            f"{path} is in a folder that every user of this machine can write to, and could be another's file: name one"
            " in a folder of your own",
        )


def _check_owner(path: Path) -> None:
    try:
        found = path.lstat()
    except OSError:  # it is made now
        return
    is_open = found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode)
    if is_open or found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            "file-not-trusted",
            f"{path} belongs to user {found.st_uid}, or every user may write to it: what it says may be anybody's. Move"
            " it away, or give it to the user that runs this (chown, chmod o-w)",
        )
