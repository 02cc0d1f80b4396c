"""Random passwords of local servers, in files that only their owner reads."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from onefold.local.server_errors import LocalServerError, clear_disk_errors


def new_password() -> str:
    """Of letters and digits: it needs no quoting anywhere."""
    return secrets.token_hex(24)


def write_secret(path: Path, text: str) -> None:
    """A new file of mode 0600, in a folder of ours; it is no file, and no link, that was there."""
    with clear_disk_errors(path.parent):
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)


def refuse_open_data(data: Path, secret: Path) -> None:
    """Raises for data whose password is lost, and for those of the time when servers let everybody in."""
    if not secret.exists():
        raise LocalServerError(
            "password-lost",
            f"{data} was made when everybody could log in, or {secret}, which has its password, is lost. Remove {data}"
            " to have it made anew",
        )
