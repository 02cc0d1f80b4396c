"""A worker's database: what its hops have taken, keep and send. SQLite, with one writer and any number of readers.

With `synchronous=FULL` and a write-ahead log a transaction shows to readers only once it is synced. The state of hops
is in it, too: snapshots as any backend stores them, as files within the transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from onefold.clients.sql.sqlite import prepare
from onefold.core.errors import ConfigError, DataLoss, OnefoldError, OutOfResources, Retriable
from onefold.core.writing.durable_files import OwnFolder
from onefold.engine.mechanisms.transaction.channels import HopChannel
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage
from onefold.engine.workers.frames import Frame

LOCK_S = 10.0  # for the process before, which may be about to end
BUSY_S = 30.0  # for a lock of SQLite's own, which others hold for moments
_FILE = "hops.db"
_KEPT = "kept (name TEXT PRIMARY KEY, value)"
_OUTBOX = "outbox (channel TEXT, number INTEGER, kind INTEGER, payload BLOB, PRIMARY KEY (channel, number))"
_REFUSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
Sent = tuple[int, Frame]
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
        with suppress(FileNotFoundError), self.path.with_name(f"{_FILE}-wal").open("rb") as log:
            os.fsync(log.fileno())

    def get(self, name: str, default: Any) -> Any:
        found = self.run("SELECT value FROM kept WHERE name = ?", name)
        return json.loads(found[0][0]) if found else default

    def outbox(self, channel: str, after: int, up_to: int, bytes_max: int) -> list[Sent]:
        """What was sent over it and not forgotten, with its numbers: behind one number and up to another, at least
        one, where there is any, and about `bytes_max` at most."""
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
    """The one that this process alone writes to; `outgoing` are the channels that it sends over.

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
        """How much was sent over it that its receiver has not taken."""
        return self.sent(channel) - self.taken(channel)[0]

    def sent_after(self, channel: HopChannel, after: int, bytes_max: int) -> list[Sent]:
        """Raises DataLoss where the next number is not there: nobody but its receiver lets go of it."""
        up_to = self.sent(channel)
        found = self.view(channel.sender).outbox(channel.name, after, up_to, bytes_max)
        if after < up_to and [number for number, _ in found[:1]] != [after + 1]:
            raise lost(channel.name, after + 1)
        return found

    def send(self, channel: HopChannel, frame: Frame) -> None:
        number = self._numbers[channel.name] = 1 + (self._numbers.get(channel.name) or self.sent(channel))
        self.run("INSERT INTO outbox VALUES (?, ?, ?, ?)", channel.name, number, *frame)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All that is done within the block shows to others, and outlives a crash, from its end on; or nothing. What
        receivers have committed is forgotten."""
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

    def close(self) -> None:
        for view in self._views.values():
            view._db.close()
        os.close(self._lock)

    def _forgettable(self) -> dict[str, int]:
        taken = {each.name: self.taken(each)[0] for each in self._outgoing}
        return {name: number for name, number in taken.items() if number > self._forgotten.get(name, 0)}


class FilesInDatabase(Storage):
    """The files of a chain's state, as far as backends use a storage."""

    def __init__(self, database: HopDatabase, chain: int) -> None:
        super().__init__(str(database.path), f"chain {chain}")
        self._run, self._prefix = database.run, f"file {chain} "

    def write(self, name: str, content: Iterable[bytes | pa.Buffer]) -> None:
        self._run("INSERT INTO kept VALUES (?, ?)", self._prefix + name, b"".join(self._counted(content)))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        found = self._run("SELECT value FROM kept WHERE name = ?", self._prefix + name)
        if not found:
            raise FileNotFoundError(name)
        content: bytes = found[0][0]
        begin = offset if offset >= 0 else max(0, len(content) + offset)
        return content[begin : None if length is None else begin + length]

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        query = "SELECT length(value) FROM kept WHERE name = ?"
        return {name: next((size for (size,) in self._run(query, self._prefix + name)), None) for name in names}

    def remove(self, names: Iterable[str]) -> None:
        """What a backend could not store goes with the transaction."""

    def save(self, backend: StateBackend, number: int) -> str:
        """The backend's state as it is, in the place of what was saved before. Returns its handle."""
        frozen = backend.freeze(number)
        try:
            handle = frozen.store()
        finally:
            frozen.release()
        footer, own = read_footer(self, handle)
        kept = [self._prefix + name for name in (own.name, *(piece.name for piece in footer.pieces))]
        of_chain = "DELETE FROM kept WHERE substr(name, 1, ?) = ? AND name NOT IN"
        self._run(f"{of_chain} ({', '.join('?' * len(kept))})", len(self._prefix), self._prefix, *kept)
        return handle


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


def lost(channel: str, number: int) -> DataLoss:
    return DataLoss(
        "hops-lost",
        f"number {number} of {channel} is not there: the databases of the flow's hops, in the folder `hops` of its"
        " checkpoint, were lost or are an older copy, or its checkpoint store is one. Nothing was written. Put both"
        " back as they were at one moment; or begin anew, with empty tables",
    )
