"""What goes wrong with servers on this machine."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onefold.core.errors import OnefoldError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class LocalServerError(OnefoldError):
    """A local server cannot be started, stopped or supplied; the message says why and what to do."""


def never_started(name: str, directory: Path) -> LocalServerError:
    return LocalServerError(
        "server-never-started",
        f"{name} was never started in {directory}: start it (onefold local up; --dir names another folder than"
        " .onefold/local), or run this in the folder where it was started",
    )


@contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turns a full disk or a folder that may not be written into a message that names `folder`."""
    try:
        yield
    except PermissionError as error:
        raise LocalServerError(
            "folder-not-writable", f"no permission to write {error.filename or folder}: choose another folder"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise LocalServerError(
            "not-a-folder", f"{error.filename or folder} is not a folder: choose another one"
        ) from error
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise LocalServerError(
            "disk-full", f"the disk that holds {folder} is full: free some space and start again"
        ) from error
