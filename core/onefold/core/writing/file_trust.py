"""What onefold believes of a file of this machine: that its own user, or root, has made it, and nobody else may change
it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from onefold.core.errors import ConfigError

__all__ = ["check_folder", "check_owner"]


def check_folder(path: Path) -> None:
    """Raises ConfigError where another user, or every user, may make files beside this one, and take it away."""
    try:
        found = path.parent.stat()
    except OSError:
        return
    if found.st_mode & stat.S_IWOTH or found.st_uid not in (os.geteuid(), 0):
        who = "every user of this machine" if found.st_mode & stat.S_IWOTH else f"user {found.st_uid}, whose it is,"
        raise ConfigError(
            "folder-not-trusted",
            f"{path} is in a folder that {who} can write to, and could be another's file: name one in a folder of your"
            " own",
        )


def check_owner(path: Path) -> None:
    """Raises ConfigError where another user has made the file or folder, or the link in its place, or every user may
    write to it. Where nothing is, it is made now."""
    try:
        found = path.lstat()
    except OSError:
        return
    is_open = found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode)
    if is_open or found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            "file-not-trusted",
            f"{path} belongs to user {found.st_uid}, or every user may write to it: what it says may be anybody's. Move"
            " it away, or give it to the user that runs this (chown, chmod o-w)",
        )
