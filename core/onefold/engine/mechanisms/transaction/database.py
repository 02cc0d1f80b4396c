"""A worker's database: what its hops have taken, keep and send. SQLite, with one writer and any number of readers.

With `synchronous=FULL` and a write-ahead log a transaction shows to readers only once it is synced.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onefold.clients.sql.sqlite import prepare
from onefold.core.errors import ConfigError, DataLoss, OnefoldError, OutOfResources, Retriable
from onefold.core.writing.durable_files import OwnFolder
from onefold.engine.mechanisms.transaction.channels import HopChannel
from onefold.engine.mechanisms.transaction.hop import Sent
from onefold.engine.workers.frames import Frame

__all__ = ["HopDatabase", "View"]

LOCK_S = 10.0  # for the process before, which may be about to end
BUSY_S = 30.0  # for a lock of SQLite's own, which others hold for moments
_FILE = "hops.db"
_KEPT = "kept (name TEXT PRIMARY KEY, value)"
_OUTBOX = "outbox (channel TEXT, number INTEGER, kind INTEGER, payload BLOB, PRIMARY KEY (channel, number))"
_REFUSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


class View:
    """What is committed in the database of that folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE
        place = f"{self.path.absolute().as_uri()}?mode=rw"
        with self._reaching():
            self._db = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None, uri=True)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "user_version"):
                self._db.execute(f"PRAGMA {pragma}").fetchone()
        # A writer that was killed may have left a transaction whole and not synced, which is found by now.
        with suppress(FileNotFoundError):
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(log)
            finally:
                os.close(log)

    def get(self, name: str, default: Any) -> Any:
        found = self.run("SELECT value FROM kept WHERE name = ?", name)
        return json.loads(found[0][0]) if found else default

    def outbox(self, channel: str, after: int, up_to: int, bytes_max: int) -> list[Sent]:
        """What was sent over it and not forgotten, behind one number and up to another, as `HopStore.sent_after`."""
        found: list[Sent] = []
        query = "SELECT number, kind, payload FROM outbox WHERE channel = ? AND number > ? AND number <= ?"
        with self._reaching():
            rows = self._db.execute(f"{query} ORDER BY number", (channel, after, up_to))
            while bytes_max > 0 and (row := rows.fetchone()) is not None:
                found.append((row[0], row[1:]))
                bytes_max -= len(row[2])
            rows.close()
        return found

    def run(self, statement: str, *values: Any) -> list[Any]:
        with self._reaching():
            return self._db.execute(statement, values).fetchall()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _said(self.path, error) from error


class HopDatabase(View):
    """The one that this process alone writes to; `outgoing` are the channels that it sends over. Implements HopStore.

    Raises Retriable where another process has it, ConfigError where nothing can be made there."""

    def __init__(self, root: Path, name: str, outgoing: Collection[HopChannel] = ()) -> None:
        self._root, self._outgoing = root, outgoing
        try:
            self._lock = OwnFolder(root, name).lock(LOCK_S)
            prepare(root / name / _FILE)
        except TimeoutError:
            raise Retriable(
                "hops-in-use",
                f"another process works in {root / name}: a run of this flow that has not ended, or is paused. Nothing"
                f" was changed. Find it (fuser {root / name}/lock), and end it",
            ) from None
        except OSError as error:
            raise _refused(root / name, str(error.strerror)) from error
        super().__init__(root / name)
        self._views: dict[str, View] = {name: self}
        self._numbers: dict[str, int] = {}  # of what the open transaction has sent
        self._forgotten: dict[str, int] = {}
        for table in (_KEPT, _OUTBOX):
            self.run(f"CREATE TABLE IF NOT EXISTS {table}")

    def view(self, name: str) -> View:
        if name not in self._views:
            self._views[name] = View(self._root / name)
        return self._views[name]

    def put(self, name: str, value: Any) -> None:
        self.run("REPLACE INTO kept VALUES (?, ?)", name, json.dumps(value))

    def sent(self, channel: HopChannel) -> int:
        return int(self.view(channel.sender).get(f"sent {channel.name}", 0))

    def taken(self, channel: HopChannel) -> Sequence[int]:
        found: Sequence[int] = self.view(channel.receiver).get(f"taken {channel.name}", (0, 0, 0))
        return found

    def waiting(self, channel: HopChannel) -> int:
        return self.sent(channel) - self.taken(channel)[0]

    def sent_after(self, channel: HopChannel, after: int, bytes_max: int) -> list[Sent]:
        return self.view(channel.sender).outbox(channel.name, after, self.sent(channel), bytes_max)

    def send(self, channel: HopChannel, frame: Frame) -> None:
        number = self._numbers[channel.name] = 1 + (self._numbers.get(channel.name) or self.sent(channel))
        self.run("INSERT INTO outbox VALUES (?, ?, ?, ?)", channel.name, number, *frame)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What receivers have committed is forgotten with the next transaction."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            for channel, number in self._numbers.items():
                self.put(f"sent {channel}", number)
            taken = self._forgettable()
            for channel, number in taken.items():
                self.run("DELETE FROM outbox WHERE channel = ? AND number <= ?", channel, number)
            self.run("COMMIT")
            self._forgotten |= taken
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._numbers.clear()

    def tidy(self) -> None:
        """Forget, where nothing else is written."""
        if self._forgettable():
            with self.writing():
                pass

    def close(self) -> None:
        for view in self._views.values():
            view._db.close()
        os.close(self._lock)

    def _forgettable(self) -> dict[str, int]:
        taken = {each.name: self.taken(each)[0] for each in self._outgoing}
        return {name: number for name, number in taken.items() if number > self._forgotten.get(name, 0)}


def _said(path: Path, error: sqlite3.Error) -> OnefoldError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return OutOfResources(
            "hops-disk-full", f"{path} cannot be written: {error}. Nothing was lost. Make room, and it goes on"
        )
    if code in _REFUSED:
        return _refused(path, str(error))
    if code in _BROKEN:
        return DataLoss(
            "hops-damaged",
            f"{path} cannot be read: {error}. What is on its way to the sinks is there and nowhere else. Put the folder"
            f" {path.parent.parent} back from a copy of one moment; or begin anew, with empty tables",
        )
    return Retriable("hops-unavailable", f"{path} cannot be read or written: {error}")


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "hops-refused",
        f"{path} cannot be written or read: {why}. Nothing was lost. Name a checkpoint folder in which this process may"
        " make folders and files",
    )
