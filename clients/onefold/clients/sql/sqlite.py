"""SQLite, through Python's own module; and what onefold believes of a file: that only its own user can change it, put
another in its place, or lead it elsewhere by a link."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onefold.clients.sql.database_backend import Answer, Backend, Meaning, Statement, reason
from onefold.clients.sql.url import DatabaseUrl
from onefold.core.errors import ConfigError
from onefold.core.writing.durable_files import FILE_MODE, NEW, check_folder, check_owner

_BESIDE = ("", "-wal", "-shm", "-journal")  # SQLite believes what these say, too
_PARAMETER = re.compile(r"%\((\w+)\)s")
_WAL = "PRAGMA journal_mode=WAL"
_HOPELESS = ("unable to open database file", "readonly database", "not a database", "is malformed")
_HOPELESS_CODES = ("SQLITE_ERROR", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_TOOBIG", "SQLITE_RANGE")
_BAD_ROW_CODES = ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH")


class SqliteConnection(sqlite3.Connection):
    """One that takes attributes."""


class SqliteBackend(Backend):
    """A file that one process at a time writes to."""

    name, is_local = "SQLite", True
    connection_type = sqlite3.Connection
    error, integrity_error = sqlite3.Error, sqlite3.IntegrityError

    def __init__(self, url: DatabaseUrl, *uses: Any, **limits: Any) -> None:
        super().__init__(url, *uses, **limits)
        if url.user or url.host or url.port:
            raise ValueError("SQLite has no host and no user: write sqlite:////path/file.db")

    def connect(self) -> sqlite3.Connection:
        if self.url.file:
            prepare(Path(self.url.file))
        name, is_uri = self.url.database or ":memory:", self.url.query.get("uri") == "true"
        options = [f"{key}={value}" for key, value in self.url.query.items() if is_uri and key != "uri"]
        name += f"?{'&'.join(options)}" if options else ""
        connection = sqlite3.connect(
            name,
            timeout=self.lock_timeout_s,
            isolation_level=None,  # we begin transactions ourselves
            check_same_thread=False,
            factory=SqliteConnection,
            uri=is_uri,
        )
        try:
            connection.execute("PRAGMA synchronous=EXTRA")  # durable also where the file's own mode is not WAL
            if self.reads_only:
                connection.execute("PRAGMA query_only=ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def begin(self, connection: sqlite3.Connection, first: Sequence[Statement]) -> list[Answer]:
        connection.execute("BEGIN" if self.reads_only else "BEGIN IMMEDIATE")  # a read waits for nobody
        return self.run(connection, first)

    def _own_text(self, statement: str) -> str:
        return _PARAMETER.sub(r":\1", statement).removesuffix(" FOR UPDATE")

    def tables(self, connection: sqlite3.Connection) -> set[str]:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onefold%'")
        return {name for (name,) in found}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Sets the mode WAL, which stays in the file: so only a start does it, and whoever looks leaves it alone."""
        connection = self.take()
        try:
            connection.execute(_WAL).fetchall()
        except BaseException:
            self.end(connection)
            raise
        self.give_back(connection)
        yield

    def making(self, connection: sqlite3.Connection | None) -> list[str]:
        journal = None if connection is None else connection.execute("PRAGMA journal_mode").fetchone()[0]
        return [] if journal in ("wal", "memory") else [_WAL]

    def meaning(self, error: Exception) -> Meaning:
        code = str(getattr(error, "sqlite_errorname", None) or "")
        if code.startswith(_BAD_ROW_CODES):
            return Meaning.BAD_ROW
        if code in _HOPELESS_CODES or any(word in reason(error) for word in _HOPELESS):
            return Meaning.HOPELESS
        # COMMIT says FULL only where its last page, which makes it one, found no room in the WAL.
        return {"SQLITE_BUSY": Meaning.PASSING, "SQLITE_FULL": Meaning.EXHAUSTED}.get(code, Meaning.BROKEN)


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
