"""A SQL database as checkpoint store and SQL sinks use it: short durable transactions, and errors that say what took
effect."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, CompileError, IdentifierError, MultipleResultsFound, SQLAlchemyError

from onefold.core.errors import BadRecord, ConfigError, InDoubt, OnefoldError, OutOfResources, Retriable
from onefold.core.extras import naming_extras
from onefold.core.findings import THIS_MACHINE, Finding, Making
from onefold.core.sql import sqlite_trust
from onefold.core.sql.backends import Bound, backend_of, reason, url_of
from onefold.core.sql.creating import creating
from onefold.core.sql.meaning import Meaning
from onefold.core.sql.postgres_message import Answer
from onefold.core.values.plain import plain
from onefold.core.writing.durable_files import FOLDER_MODE

__all__ = ["OWN_FOLDER", "Database", "shown"]

_ITS_OWN = (ArgumentError, CompileError, IdentifierError, MultipleResultsFound)  # SQLAlchemy's, whatever servers say
OWN_FOLDER = ".onefold"  # beside a pipeline's file: made where it is missing, unlike a folder that a user names
# Of libpq and of PyMySQL, where they may stand in a URL's query.
_SECRETS = ("password", "passwd", "sslpassword", "ssl_key_password", "oauth_client_secret")


class Database:
    """One database by its SQLAlchemy URL. `who` uses it, for the texts of errors; `application` is for the server."""

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
        self.backend, self.url = backend_of(url_of(url, f"{who}'s"))
        try:
            with naming_extras():
                self.engine = self.backend.engine(self.url, lock_timeout_s, application)
                if reads_only:
                    self.backend.only_read(self.engine, lock_timeout_s)
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigError(
                "url-unreadable", f"{who}'s URL is not usable: {plain(' '.join(str(error).split()))}"
            ) from error

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can use it."""
        return self.backend.is_local

    def is_there(self) -> bool:
        """False for a SQLite file that a connection would only now create."""
        path = self.url.database
        return not self.is_local or path in (None, ":memory:") or path.startswith("file:") or Path(path).exists()

    def check_new(self) -> None:
        """Raise ConfigError where `creating` could not make the SQLite file that is not there."""
        path = Path(self.url.database or "")
        sqlite_trust.check_file(path)
        folder = path.parent.parent if path.parent.name == OWN_FOLDER and not path.parent.exists() else path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                "database-access-denied",
                f"{self.who} at {self} can't be reached: unable to open database file. Make the folder {folder},"
                " let this user write to it, or mend the URL",
            )

    def making_new(self, says: str, tables: Iterable[sa.Table]) -> Finding:
        """That `creating` makes the SQLite file, and these tables in it."""
        statements = [*self.backend.making(None), *creating(self.engine.dialect, tables)]
        found = Finding.making(says, str(self), statements)
        folder = Path(self.url.database or "").parent
        if folder.name != OWN_FOLDER or folder.exists():
            return found
        return replace(found, makes=(Making(THIS_MACHINE, f"mkdir -p {shlex.quote(str(folder))}"), *found.makes))

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One transaction. Raises `Retriable` or `ConfigError` where it had no effect, `InDoubt` where its commit is
        unknown; an error from inside rolls it back."""
        with self.transaction_with() as (connection, _):
            yield connection

    @contextmanager
    def transaction_with(self, *first: Bound) -> Iterator[tuple[sa.Connection, list[Answer]]]:
        """One transaction, as above, and what its first statements answer: with its begin, they are one round trip
        where the database allows it."""
        try:
            connection = self.engine.connect()
        except SQLAlchemyError as error:
            raise self._without_effect("can't be reached", error) from error
        with connection:
            try:
                yield connection, self.backend.begin(connection, first)
            except OnefoldError:
                with suppress(SQLAlchemyError):  # a dead connection rolls back by itself
                    connection.rollback()
                raise
            except SQLAlchemyError as error:
                if self.backend.meaning(error) is Meaning.BROKEN:
                    connection.invalidate()
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise self._without_effect("refused", error) from error
            try:
                connection.commit()
            except SQLAlchemyError as error:
                raise self._of_commit(connection, error) from error

    def end(self, connection: sa.Connection, *last: Bound) -> None:
        """Run the last statements of a transaction of these; where the database allows it, its commit is in the same
        round trip."""
        try:
            self.backend.end(connection, last)
        except SQLAlchemyError as error:
            if self.backend.commits_at_the_end:
                raise self._of_commit(connection, error) from error
            raise

    def _of_commit(self, connection: sa.Connection, error: SQLAlchemyError) -> OnefoldError:
        connection.invalidate()  # what it is in the middle of is unknown: never back into the pool
        if self.backend.meaning(error) is not Meaning.BROKEN:
            return self._without_effect("refused to commit", error)
        return InDoubt("commit-unanswered", f"{self.who} at {self} did not answer a commit: {reason(error)}")

    @contextmanager
    def creating(self) -> Iterator[sa.Connection]:
        """A transaction, as above, in which nobody else creates onefold's tables."""
        if not self.is_there() and (folder := Path(self.url.database or "").parent).name == OWN_FOLDER:
            with suppress(OSError):  # what connects says it
                folder.mkdir(FOLDER_MODE, exist_ok=True)
        try:
            with self.backend.alone(self.engine), self.transaction() as connection:
                self.backend.lock_creation(connection)
                self.backend.check_ours(connection)
                yield connection
                self.backend.check_ours(connection)  # what was made now, may have been there a moment before
        except SQLAlchemyError as error:
            raise self._without_effect("can't be prepared", error) from error

    def _without_effect(self, what: str, error: SQLAlchemyError) -> OnefoldError:
        said = f"{self.who} at {self} {what}: {reason(error).rstrip('.?')}{self.backend.hint(error)}"
        if isinstance(error, _ITS_OWN):
            return ConfigError("database-call-invalid", f"{said}. Asking again changes nothing")
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


def shown(url: sa.URL | str) -> str:
    """The URL without its password, as errors and plans name the database."""
    return sa.make_url(url).difference_update_query(_SECRETS).render_as_string(hide_password=True)
