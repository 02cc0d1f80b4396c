"""What onefold believes of a SQLite file: that only its own user can change it, put another in its place, or lead it
elsewhere by a link."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from onefold.core.errors import ConfigError
from onefold.core.sql.url import DatabaseUrl
from onefold.core.writing.durable_files import FILE_MODE, NEW
from onefold.core.writing.trusted import check_folder, check_owner

__all__ = ["check_file", "check_whole_path", "prepare"]

_BESIDE = ("", "-wal", "-shm", "-journal")  # SQLite believes what these say, too


def check_file(path: Path) -> None:
    """Raises ConfigError where another user can write to the file or its folder, or has made it. Root may."""
    for place in dict.fromkeys((path, path.resolve())):
        check_folder(place)
        for ending in _BESIDE:
            check_owner(Path(f"{place}{ending}"))


def prepare(path: Path) -> None:
    """Check the file, and make it where none is, for its user alone: SQLite would make one that others can read, and
    gives journals the file's own mode. Raises ConfigError as `check_file` does."""
    check_file(path)
    with suppress(OSError):  # it is there, or SQLite says why it cannot be made
        os.close(os.open(path.resolve(), NEW, FILE_MODE))


def check_whole_path(what: str, url: DatabaseUrl) -> None:
    """Raises ConfigError for a SQLite file that would begin in the working directory, which is another one wherever
    somebody starts a command or a job: there would be one file in each."""
    if url.file is not None and not url.file.startswith("/"):
        raise ConfigError(
            "sqlite-relative",
            f"{what} names the SQLite file {url.file}, which would begin in the working directory: name its whole path,"
            " as sqlite:////srv/onefold/store.db",
        )
