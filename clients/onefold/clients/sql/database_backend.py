"""What differs between the databases that a checkpoint store, or a sink that shares its transactions, can live in.

One class for each: how a connection is made durable and bounded in waiting, how two that create tables at once keep
out of each other's way, what an error means, and what is not said in the same words everywhere. Statements are written
in SQL that all of them know, with parameters as `%(name)s`, onefold's tables by their bare names, and names in double
quotes where one of the databases reserves them.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from onefold.clients.sql.url import DatabaseUrl
from onefold.core.errors import ConfigError
from onefold.core.values.plain import SAID_MAX, plain

IDLE_S_MAX = 3600
IDLE_MAX = 8  # connections
Statement = tuple[str, Mapping[str, Any]]  # and the values of its parameters


class Meaning(enum.Enum):
    """What an error says of the transaction it came in."""

    BAD_ROW = "a row was refused"
    HOPELESS = "waiting can't cure it: a setting, a permission, a name"
    EXHAUSTED = "the server has no connection, slot or disk to spare"
    PASSING = "it may go away"
    BROKEN = "the connection broke, or the server went away in the middle"
    UNKNOWN = "none of these: a server's own fault, as a rule"


class Answer(NamedTuple):
    """What a statement answered: its rows, and how many it returned or changed."""

    rows: list[Any]
    rowcount: int


class Backend(ABC):
    """One database of one kind, and its connections, which are the driver's own (DB-API). `is_local`: only processes of
    this machine can use it. `who` uses it is for the texts of errors, `application` for the server. With `reads_only`
    transactions change nothing, hold no writer up, and have statements of at most `lock_timeout_s`."""

    name: ClassVar[str]  # as people call it
    is_local: ClassVar[bool] = False
    is_one_message: ClassVar[bool] = False  # whether the last statements of a transaction go together with its commit
    joins: ClassVar[bool] = False  # whether it has `begin_joined`
    tells_rights: ClassVar[bool] = True  # whether `check_may_create` finds a missing right, before a try does
    connection_type: type
    error: type[Exception]  # the driver's, of which all others are
    integrity_error: type[Exception]

    def __init__(
        self, url: DatabaseUrl, lock_timeout_s: float, who: str, application: str, *, reads_only: bool
    ) -> None:
        self.url, self.who, self.application = url, who, application
        self.lock_timeout_s, self.reads_only = lock_timeout_s, reads_only
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._texts: dict[str, str] = {}

    @abstractmethod
    def connect(self) -> Any:
        """A connection whose transactions commit durably, read committed, and wait so long for a lock."""

    def is_alive(self, connection: Any) -> bool:
        del connection
        return True

    def take(self) -> Any:
        """A connection outside any transaction."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            if self.is_alive(connection):
                return connection
            self.end(connection)

    def give_back(self, connection: Any) -> None:
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        self.end(connection)

    def end(self, connection: Any) -> None:
        """Close a connection, whatever it is in the middle of."""
        with suppress(self.error):
            connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self.end(connection)

    @abstractmethod
    def begin(self, connection: Any, first: Sequence[Statement]) -> list[Answer]:
        """Begin a transaction; returns what its first statements answer."""

    def begin_joined(
        self, connection: Any, first: Sequence[Statement], before: Sequence[Any], after: Sequence[Any]
    ) -> list[Answer]:
        """The same with statements of the driver's own before and after them, in one message; returns what all answer.
        What those before set of the time that waits for locks take is over with them."""
        raise NotImplementedError

    def ask(self, connection: Any, statements: Sequence[Statement]) -> list[Answer]:
        """What they answer in a transaction of their own, which changes nothing."""
        found = self.begin(connection, statements)
        self.rollback(connection)
        return found

    def run(self, connection: Any, statements: Sequence[Statement]) -> list[Answer]:
        """What the statements answer, one after the other."""
        found = []
        for text, values in statements:
            cursor = connection.cursor()
            cursor.execute(self.text(text), values)
            found.append(answered(cursor))
            cursor.close()
        return found

    def commit(self, connection: Any, last: Sequence[Statement]) -> None:
        """Run the transaction's last statements, and commit it."""
        self.run(connection, last)
        connection.commit()

    def rollback(self, connection: Any) -> None:
        connection.rollback()

    def text(self, statement: str) -> str:
        """The statement as the driver takes it."""
        if statement not in self._texts:
            self._texts[statement] = self._own_text(statement)
        return self._texts[statement]

    @abstractmethod
    def _own_text(self, statement: str) -> str: ...

    @abstractmethod
    def meaning(self, error: Exception) -> Meaning: ...

    def hint(self, error: Exception) -> str:
        """What to do about the error, as the end of its text; nothing where the text says all that is known."""
        del error
        return ""

    def let_idle(self, connection: Any) -> None:
        """Let the transaction at hand be idle for up to `IDLE_S_MAX`: it locks nothing that others wait for."""
        del connection

    @abstractmethod
    def tables(self, connection: Any) -> set[str]:
        """The names of onefold's own tables that are there."""

    def checked_tables(self, connection: Any, names: Sequence[str], *, to_look: bool) -> set[str]:
        """What `tables` says, where `check_ours` raises nothing for these."""
        self.check_ours(connection, names, to_look=to_look)
        return self.tables(connection)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Around a transaction that creates tables, where its own locks don't keep others out."""
        yield

    def lock_creation(self, connection: Any) -> None:
        """Inside a transaction that creates tables, where they are part of it."""
        del connection

    def making(self, connection: Any | None) -> list[str]:
        """The statements by which `alone` and `lock_creation` make or alter something; None where there is no database
        yet. Raises ConfigError."""
        del connection
        return []

    def check_ours(self, connection: Any, names: Sequence[str] = (), *, to_look: bool = True) -> None:
        """Raise ConfigError where somebody else has put something in place of onefold's own tables, or could change
        them; and where this role may not read these, or, unless it is `to_look`, write to them."""
        del connection, names, to_look

    def check_may_work(self, connection: Any, tables: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Raise what the database raises where this session may not read, or write to, these tables: their names, and
        those of their columns."""
        del connection, tables

    def check_may_create(self, connection: Any) -> None:
        """Raise ConfigError where this session may not make onefold's own tables, as far as the database tells."""
        del connection


@lru_cache(maxsize=256)
def _row(names: tuple[str, ...]) -> Any:
    return namedtuple("_row", names, rename=True)


def answered(cursor: Any) -> Answer:
    """What a cursor's statement answered, in rows whose values have their columns' names."""
    if cursor.description is None:
        return Answer([], cursor.rowcount)
    return answered_by(tuple(column[0] for column in cursor.description), cursor.fetchall(), cursor.rowcount)


def answered_by(names: tuple[str, ...], rows: Iterable[Sequence[Any]], rowcount: int) -> Answer:
    kind = _row(names)
    return Answer([kind._make(row) for row in rows], rowcount)


# By the dialect: the driver whose errors are known, and the class that is imported where a URL has it.
_KNOWN = {
    "sqlite": ("pysqlite", "onefold.clients.sql.sqlite", "SqliteBackend"),
    "postgresql": ("psycopg", "onefold.clients.postgres.store", "PostgresBackend"),
    "mariadb": ("pymysql", "onefold.clients.sql.mariadb", "MariaDbBackend"),
    "mysql": ("pymysql", "onefold.clients.sql.mariadb", "MariaDbBackend"),
}


def with_driver(url: DatabaseUrl) -> DatabaseUrl:
    """The URL with the driver that is known for its database. Raises ConfigError for any other."""
    name, _, driver = url.dialect.partition("+")
    known = _KNOWN.get(name, (None,))[0]
    if known is None or driver not in ("", known):
        all_known = ", ".join(f"{name}+{driver}" for name, (driver, *_) in _KNOWN.items())
        raise ConfigError(
            "database-unknown", f"{url.dialect!r} is none of the databases and drivers that onefold knows: {all_known}"
        )
    return replace(url, dialect=f"{name}+{known}")


def backend_of(url: DatabaseUrl) -> type[Backend]:
    """The kind of database of a URL with its driver. Raises ImportError where that is not installed."""
    _, module, name = _KNOWN[url.kind]
    kind: type[Backend] = getattr(import_module(module), name)
    return kind


def reason(error: BaseException) -> str:
    """What the driver or the server says, on one line."""
    return plain(" ".join(str(error).split()), SAID_MAX)
