"""Where MariaDB's programs are: those of this machine, else Debian's packages, unpacked into the cache."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from onefold.local.cache import cache_directory
from onefold.local.debian import unpack
from onefold.local.postgres.binaries import SYSTEM_CACHE, run
from onefold.local.resources import exclusive, require_space
from onefold.local.server_errors import LocalServerError, clear_disk_errors

_PACKAGE = "mariadb-server-core"
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
        raise LocalServerError(
            "mariadb-incomplete", f"{self.server} has no messages below {self.root / 'share'}: install MariaDB anew"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {}

    def scripts(self) -> list[Path]:
        """The SQL that makes an empty data folder a server's: its system tables."""
        for prefix in ("mysql", "mariadb"):
            found = [self.share / f"{prefix}_{name}.sql" for name in ("system_tables", "performance_tables")]
            if all(script.exists() for script in found):
                return found
        raise LocalServerError(
            "mariadb-incomplete", f"{self.share} has no mysql_system_tables.sql: install MariaDB's server package anew"
        )


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
                require_space(cache, _UNPACKED_BYTES, "downloading MariaDB")
                _download(unpacked)
    (libraries,) = {path.parent for path in unpacked.glob("usr/lib/*/libaio.so.1*")} or {unpacked / "usr/lib"}
    return MariaDbBinaries(unpacked / "usr/sbin/mariadbd", unpacked / "usr", libraries)


def _download(unpacked: Path) -> None:
    try:
        unpack(_PACKAGE, unpacked)
    except LocalServerError as error:
        raise LocalServerError(
            "mariadb-missing",
            f"MariaDB is not installed, and Debian's package could not be fetched ({error.message}): check the"
            " network and "
            "apt's sources, or install MariaDB's server (mariadbd) so that it is on PATH, or copy a cache that has it "
            f"to {unpacked.parent}",
        ) from error
