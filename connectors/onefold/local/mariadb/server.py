"""MariaDB, from this machine or from Debian's package."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from onefold.local.local_server import LocalServer, local_address
from onefold.local.mariadb.binaries import MariaDbBinaries, mariadb_binaries
from onefold.local.postgres.binaries import run, service_user
from onefold.local.process import ProcessRef, ServerState, as_user, kill_tree, spawn, wait_gone
from onefold.local.resources import HOST
from onefold.local.secrets import new_password, refuse_open_data, write_secret

if TYPE_CHECKING:
    from rich.progress import Progress

_NAME = "onefold"  # of the user and of the database
_END_S_MAX = 30.0
_CONNECT_S_MAX = 3
_SYSTEM_DATA = Path("/var/lib/onefold")
_SETTINGS = {
    "bind-address": HOST,
    "socket": "",
    "skip-name-resolve": "ON",
    "max-connections": "200",
    "innodb-buffer-pool-size": "256M",
    "innodb-log-file-size": "64M",
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-dump-at-shutdown": "OFF",
    "character-set-server": "utf8mb4",
    "max-allowed-packet": "16M",
}
_OWNER = f"""
FLUSH PRIVILEGES;
CREATE DATABASE {_NAME};
CREATE USER {_NAME}@'{HOST}' IDENTIFIED BY '%s';
GRANT ALL ON *.* TO {_NAME}@'{HOST}' WITH GRANT OPTION;
"""


class MariaDbServer(LocalServer):
    """A MariaDB on 127.0.0.1 with user and database `onefold`; every commit is flushed to disk.

    Its password is random, in a file that only we can read; URLs name the file (PyMySQL's `read_default_file`).
    """

    name = "mariadb"

    @property
    def url(self) -> str:
        return self._address(self.port)

    def url_of(self, database: str) -> str:
        """The URL of another database, as the same user."""
        return self._url(self.port, database)

    @property
    def option_file(self) -> Path:
        """As clients of MariaDB read it; of its server, nothing does."""
        return self.home / "client.cnf"

    @property
    def access(self) -> str:
        return f"its password is in {self.option_file}, which only you can read, and which the URL names"

    @property
    def data(self) -> Path:
        """Where the data really are: elsewhere than in `home`, if the server's own user can't go there."""
        return (self.home / "data").resolve()

    def _address(self, port: int) -> str:
        return self._url(port, _NAME)

    def _url(self, port: int, database: str) -> str:
        file = quote(str(self.option_file), "")
        return f"mariadb+pymysql://{_NAME}@{local_address(port)}/{database}?read_default_file={file}"

    def _prepare(self, progress: Progress | None) -> None:
        if progress is not None:
            progress.add_task("MariaDB: Debian's packages, once", total=None)
        binaries = mariadb_binaries()
        if (self.home / "data").exists():
            refuse_open_data(self.home / "data", self.option_file)
            return
        user = service_user(self.home)
        part = self._new_folder(user)
        password = new_password()
        write_secret(self.option_file, f"[client]\npassword={password}\n")
        scripts = [script.read_text() for script in binaries.scripts()]
        run(
            [binaries.server, *_arguments(binaries, part), "--bootstrap"],
            cwd=part,
            user=user,
            said_to_it="\n".join(
                ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;", *scripts, _OWNER % password]
            ),
            environment=binaries.environment,
        )
        if part.parent == self.home:  # a half-made data folder is never taken for a whole one
            part.replace(self.home / "data")
        else:
            (self.home / "data").symlink_to(part, target_is_directory=True)

    def _new_folder(self, user: str | None) -> Path:
        """An empty one. As root we start MariaDB as another user, who may not walk to a folder below /root; and unlike
        Postgres, MariaDB insists on walking there, so its data then go where it can."""
        part = self.home / "data.part"
        if user is not None and not _can_walk_to(self.home, user):
            part = _SYSTEM_DATA / f"mariadb-{hashlib.sha256(str(self.home).encode()).hexdigest()[:16]}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)
        if user is not None:
            _SYSTEM_DATA.mkdir(mode=0o755, exist_ok=True)
            shutil.chown(part, user)
        return part

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        del before
        binaries = mariadb_binaries()
        settings = {**_SETTINGS, **self._settings, "port": str(port), "pid-file": "onefold.pid"}
        process = spawn(
            [
                binaries.server,
                *_arguments(binaries, self.data),
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            log=self.log_path,
            cwd=self.data,
            environment={"LC_ALL": "C", **binaries.environment},
            user=service_user(self.data),
        )
        return ServerState(port=port, log=str(self.log_path), process=process)

    def _is_ready(self, port: int) -> bool:
        import pymysql

        try:
            pymysql.connect(
                host=HOST,
                port=port,
                user=_NAME,
                database=_NAME,
                read_default_file=str(self.option_file),
                connect_timeout=_CONNECT_S_MAX,
            ).close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _end(self, process: ProcessRef) -> None:
        process.signal(signal.SIGTERM)
        if not wait_gone([process], _END_S_MAX):
            kill_tree(process)


def _arguments(binaries: MariaDbBinaries, data: Path) -> list[str]:
    """`--no-defaults` comes first, and keeps this machine's own configuration out.

    A MariaDB that starts removes what it finds of temporary tables in `tmpdir`, also another's that runs: so each has
    its own.
    """
    share = binaries.share
    return [
        "--no-defaults",
        f"--basedir={binaries.root}",
        f"--datadir={data}",
        f"--tmpdir={data}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
    ]


def _can_walk_to(folder: Path, user: str) -> bool:
    command = ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]
    return subprocess.run(command, capture_output=True, cwd="/", check=False, **as_user(user)).returncode == 0
