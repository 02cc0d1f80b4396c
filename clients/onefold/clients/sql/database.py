"""A SQL database as checkpoint store and SQL sinks use it: short durable transactions, and errors that say what took
effect."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from onefold.clients.sql.database_backend import Answer, Meaning, Statement, backend_of, reason, with_driver
from onefold.clients.sql.sqlite import check_file
from onefold.clients.sql.url import url_of
from onefold.core.contract import Joined
from onefold.core.errors import BadRecord, ConfigError, InDoubt, OnefoldError, OutOfResources, Retriable
from onefold.core.extras import naming_extras
from onefold.core.findings import THIS_MACHINE, Finding, Making
from onefold.core.values.plain import plain
from onefold.core.writing.durable_files import FOLDER_MODE

OWN_FOLDER = ".onefold"  # beside a pipeline's file: made where it is missing, unlike a folder that a user names


@dataclass(slots=True)
class Transaction:
    """A transaction of a database. `connection` is the driver's own (DB-API), `found` what the first statements
    answered, and `of_joined` what those answered that joined them."""

    database: Database
    connection: Any
    found: list[Answer] = field(default_factory=list)
    of_joined: list[Answer] = field(default_factory=list)
    is_over: bool = False

    def run(self, *statements: Statement) -> list[Answer]:
        """What the statements answer, one after the other."""
        return self.database.backend.run(self.connection, statements)

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        (answer,) = self.run((statement, values or {}))
        return answer.rows

    def end(self, *last: Statement) -> None:
        """Run the transaction's last statements and commit it, where the database allows it in one round trip."""
        self.database._commit(self, last)


class Database:
    """One database by its URL. `who` uses it, for the texts of errors; `application` is for the server."""

    def __init__(
        self,
        url: str,
        lock_timeout_s: float,
        who: str = "the checkpoint store",
        application: str = "onefold store",
        *,
        reads_only: bool = False,
    ) -> None:
        self.who = who
        self.url = with_driver(url_of(url, f"{who}'s"))
        try:
            with naming_extras():
                self.backend = backend_of(self.url)(self.url, lock_timeout_s, who, application, reads_only=reads_only)
        except (ValueError, ImportError) as error:
            raise self._unusable(error) from error

    def __str__(self) -> str:
        return str(self.url)

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can use it."""
        return self.backend.is_local

    def is_there(self) -> bool:
        """False for a SQLite file that a connection would only now create."""
        return self.url.file is None or Path(self.url.file).exists()

    def check_new(self) -> None:
        """Raise ConfigError where `creating` could not make the SQLite file that is not there."""
        path = Path(self.url.file or "")
        check_file(path)
        folder = path.parent.parent if path.parent.name == OWN_FOLDER and not path.parent.exists() else path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                "database-access-denied",
                f"{self.who} at {self} can't be reached: unable to open database file. Make the folder {folder},"
                " let this user write to it, or mend the URL",
            )

    def making_new(self, says: str, statements: Iterable[str]) -> Finding:
        """That `creating` makes the SQLite file, and its tables by these statements."""
        found = Finding.making(says, str(self), [*self.backend.making(None), *statements])
        folder = Path(self.url.file or "").parent
        if folder.name != OWN_FOLDER or folder.exists():
            return found
        return replace(found, makes=(Making(THIS_MACHINE, f"mkdir -p {shlex.quote(str(folder))}"), *found.makes))

    def close(self) -> None:
        self.backend.close()

    def ask(self, *statements: Statement) -> list[Answer]:
        """What they answer in a transaction that changes nothing: one round trip, where the database allows it. Raises
        `Retriable` or `ConfigError`."""
        with self._begun(self.backend.ask, statements) as transaction:
            transaction.is_over = True
        return transaction.found

    @contextmanager
    def transaction(self, *first: Statement, joined: Joined | None = None) -> Iterator[Transaction]:
        """One transaction, which its first statements begin in one round trip where the database allows it, with those
        that are `joined` around them, where it `joins`. Raises `Retriable` or `ConfigError` where it had no effect,
        `InDoubt` where its commit is unknown; an error from inside rolls it back."""
        before, after = ([], []) if joined is None else (joined.before, joined.after)
        begin = self.backend.begin if joined is None else partial(self.backend.begin_joined, before=before, after=after)
        with self._begun(begin, first) as transaction:
            found, at, end = transaction.found, len(before), len(before) + len(first)
            transaction.found, transaction.of_joined = found[at:end], found[:at] + found[end:]
            yield transaction

    @contextmanager
    def _begun(
        self, begin: Callable[[Any, Sequence[Statement]], list[Answer]], first: Sequence[Statement]
    ) -> Iterator[Transaction]:
        backend = self.backend
        try:
            transaction = Transaction(self, backend.take())
        except backend.error as error:
            raise self._without_effect("can't be reached", error) from error
        except (ValueError, TypeError, OSError) as error:  # a setting that is none of the driver's, a file of TLS
            raise self._unusable(error) from error
        connection = transaction.connection
        try:
            transaction.found = begin(connection, first)
            yield transaction
        except backend.error as error:
            self._roll_back(connection, is_broken=backend.meaning(error) is Meaning.BROKEN)
            raise self._without_effect("refused", error) from error
        except BaseException:
            self._roll_back(connection)
            raise
        if not transaction.is_over:
            self._commit(transaction)
        backend.give_back(connection)

    def _roll_back(self, connection: Any, *, is_broken: bool = False) -> None:
        """A connection that cannot be asked to is closed: the server does it then."""
        try:
            if not is_broken:
                self.backend.rollback(connection)
                self.backend.give_back(connection)
                return
        except self.backend.error:
            pass
        self.backend.end(connection)

    def _commit(self, transaction: Transaction, last: tuple[Statement, ...] = ()) -> None:
        if not self.backend.is_one_message:
            transaction.run(*last)
            last = ()
        try:
            self.backend.commit(transaction.connection, last)
        except BaseException as error:
            self.backend.end(transaction.connection)  # what it is in the middle of is unknown: never used again
            if not isinstance(error, self.backend.error):
                raise
            if self.backend.meaning(error) is not Meaning.BROKEN:
                raise self._without_effect("refused to commit", error) from error
            says = f"{self.who} at {self} did not answer a commit: {reason(error)}"
            raise InDoubt("commit-unanswered", says) from error
        transaction.is_over = True

    @contextmanager
    def creating(self) -> Iterator[Transaction]:
        """A transaction, as above, in which nobody else creates onefold's tables."""
        if not self.is_there() and (folder := Path(self.url.file or "").parent).name == OWN_FOLDER:
            with suppress(OSError):  # what connects says it
                folder.mkdir(FOLDER_MODE, exist_ok=True)
        backend = self.backend
        try:
            with backend.alone(), self.transaction() as transaction:
                backend.lock_creation(transaction.connection)
                backend.check_ours(transaction.connection)
                yield transaction
                backend.check_ours(transaction.connection)  # what was made now, may have been there a moment before
        except backend.error as error:
            raise self._without_effect("can't be prepared", error) from error

    def _unusable(self, error: Exception) -> ConfigError:
        return ConfigError("url-unreadable", f"{self.who}'s URL is not usable: {plain(' '.join(str(error).split()))}")

    def _without_effect(self, what: str, error: Exception) -> OnefoldError:
        said = f"{self.who} at {self} {what}: {reason(error).rstrip('.?')}{self.backend.hint(error)}"
        match self.backend.meaning(error):
            case Meaning.BAD_ROW:
                return BadRecord("row-refused", f"{said}. Nothing was written")
            case Meaning.HOPELESS:
                way = "Nothing was written: mend what it names, and let the role or the folder be written"
                if what == "can't be reached":
                    way = "Check its URL, its password, and that the role or the folder may be written"
                return ConfigError("database-access-denied", f"{said}. {way}")
            case Meaning.EXHAUSTED:
                return OutOfResources("database-resources-exhausted", said)
            case Meaning.PASSING | Meaning.BROKEN | Meaning.UNKNOWN:
                return Retriable("database-unavailable", said)
