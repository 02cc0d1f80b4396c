"""Where MariaDB's programs are: those of this machine, else Debian's packages, unpacked into the cache."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from onefold.local.cache import cache_directory
from onefold.local.errors import LocalServerError, clear_disk_errors
from onefold.local.postgres_binaries import SYSTEM_CACHE, run
from onefold.local.resources import exclusive, require_space

__all__ = ["MariaDbBinaries", "mariadb_binaries"]

_PACKAGE = "mariadb-server-core"
# Every process of this machine needs these, so they are here; another libc beside its own loader would not start.
_LIBRARIES_HERE = ("libc6", "libgcc-s1", "libcrypt1")
_UNPACKED_BYTES = 200 * 1024 * 1024
_LOCK_S_MAX = 600.0
_SERVERS = ("mariadbd", "mysqld")


@dataclass(frozen=True)
class MariaDbBinaries:
    """`root` holds bin, share and lib; `libraries`, where set, are those that came with the packages."""

    server: Path
    root: Path
    libraries: Path | None

    @property
    def share(self) -> Path:
        for name in ("mysql", "mariadb"):
            if (self.root / "share" / name / "english").is_dir():
                return self.root / "share" / name
        raise LocalServerError(f"{self.server} has no messages below {self.root / 'share'}: install MariaDB anew")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {}

    def scripts(self) -> list[Path]:
        """The SQL that makes an empty data folder a server's: its system tables."""
        for prefix in ("mysql", "mariadb"):
            found = [self.share / f"{prefix}_{name}.sql" for name in ("system_tables", "performance_tables")]
            if all(script.exists() for script in found):
                return found
        raise LocalServerError(f"{self.share} has no mysql_system_tables.sql: install MariaDB's server package anew")


def mariadb_binaries() -> MariaDbBinaries:
    """Downloads them once, if they are nowhere. Raises LocalServerError, which says what to do."""
    for name in _SERVERS:
        found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))
        if found is not None and "MariaDB" in run([found, "--no-defaults", "--version"]):
            server = Path(found).resolve()
            return MariaDbBinaries(server, server.parent.parent, None)
    cache = SYSTEM_CACHE if os.geteuid() == 0 else cache_directory()  # the server's own user can't go below /root
    unpacked = cache / "mariadb"
    if not unpacked.exists():
        with exclusive(cache / "mariadb.lock", _LOCK_S_MAX, "downloading MariaDB"), clear_disk_errors(cache):
            if not unpacked.exists():  # another process was quicker
                cache.chmod(0o755)
                require_space(cache, _UNPACKED_BYTES, "downloading MariaDB")
                _download(unpacked)
    (libraries,) = {path.parent for path in unpacked.glob("usr/lib/*/libaio.so.1*")} or {unpacked / "usr/lib"}
    return MariaDbBinaries(unpacked / "usr/sbin/mariadbd", unpacked / "usr", libraries)


def _download(unpacked: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise LocalServerError(
            "MariaDB is not installed, and this machine has no apt-get to fetch it with: install MariaDB's server "
            f"(mariadbd) so that it is on PATH, or copy a cache that has it to {unpacked.parent}"
        )
    with tempfile.TemporaryDirectory(prefix="mariadb-", suffix=".part", dir=unpacked.parent) as part:
        packages, whole = Path(part, "packages"), Path(part, "whole")
        packages.mkdir()
        whole.mkdir(mode=0o755)
        try:
            _fetch(packages, [])
        except LocalServerError:
            # No package lists on this machine, or old ones: lists of our own, which needs no root.
            lists = Path(part, "lists")
            (lists / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={part}", "-o", "APT::Sandbox::User="]
            try:
                run(["apt-get", *own, "-q", "update"])
                _fetch(packages, own)
            except LocalServerError as error:
                raise LocalServerError(
                    f"MariaDB is not installed, and Debian's package could not be fetched ({error}): check the network "
                    "and apt's sources, or install MariaDB's server (mariadbd) so that it is on PATH"
                ) from error
        for package in sorted(packages.glob("*.deb")):
            run(["dpkg", "-x", package, whole])
        whole.replace(unpacked)


def _fetch(folder: Path, options: list[str]) -> None:
    said = run(["apt-cache", *options, "depends", _PACKAGE])
    libraries = [name for name in re.findall(r"^ +Depends: (lib\S+)$", said, re.M) if name not in _LIBRARIES_HERE]
    run(["apt-get", *options, "-q", "-o", "APT::Sandbox::User=", "download", _PACKAGE, *libraries], cwd=folder)
