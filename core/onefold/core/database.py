"""A SQL database as the checkpoint store uses it: short durable transactions, and errors that say what took effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from onefold.core.errors import ConfigError, InDoubt, OnefoldError, Retriable

__all__ = ["Database"]

# What waiting can't cure: SQLSTATE classes of Postgres (wrong password or role, no such database, no permission),
# and SQLite's own words.
_HOPELESS_SQLSTATES = ("28", "3D", "42501")
_HOPELESS_WORDS = ("unable to open database file", "readonly database", "not a database", "is malformed")
_NO_ENTRY_WORDS = ("authentication failed", "does not exist", "no pg_hba.conf entry")


class Database:
    """One database by its SQLAlchemy URL: SQLite or Postgres."""

    def __init__(self, url: str, lock_timeout_s: float) -> None:
        try:
            self.url = sa.make_url(url)
            self.engine = _engine(self.url, lock_timeout_s)
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigError(f"the checkpoint store's URL is not usable: {error}") from error

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can use it."""
        return self.url.get_backend_name() == "sqlite"

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One transaction. Raises `Retriable` or `ConfigError` where it had no effect, `InDoubt` where its commit is
        unknown; an error from inside rolls it back."""
        try:
            connection = self.engine.connect()
        except SQLAlchemyError as error:
            raise self._without_effect("can't be reached", error) from error
        with connection:
            try:
                transaction = connection.begin()
                yield connection
            except OnefoldError:
                with suppress(SQLAlchemyError):  # a dead connection rolls back by itself
                    connection.rollback()
                raise
            except SQLAlchemyError as error:
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise self._without_effect("refused", error) from error
            try:
                transaction.commit()
            except SQLAlchemyError as error:
                connection.invalidate()  # what it is in the middle of is unknown: never back into the pool
                raise InDoubt(f"the checkpoint store at {self} did not answer a commit: {_reason(error)}") from error

    def _without_effect(self, what: str, error: SQLAlchemyError) -> OnefoldError:
        reason = _reason(error)
        state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
        hopeless = state.startswith(_HOPELESS_SQLSTATES) or isinstance(error, ProgrammingError)
        if hopeless or any(word in reason for word in (*_HOPELESS_WORDS, *_NO_ENTRY_WORDS)):
            return ConfigError(
                f"the checkpoint store at {self} {what}: {reason}. Check its URL, its password, and that the role or"
                " the folder may be written"
            )
        return Retriable(f"the checkpoint store at {self} {what}: {reason}")


def _engine(url: sa.URL, lock_timeout_s: float) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": lock_timeout_s})
        sa.event.listen(engine, "connect", _sqlite_settings)
        sa.event.listen(engine, "begin", _sqlite_begin)
        return engine
    if url.get_backend_name() == "postgresql":
        options = f"-c synchronous_commit=on -c lock_timeout={int(lock_timeout_s * 1000)}"
        tcp = {"connect_timeout": 10, "keepalives_idle": 10, "tcp_user_timeout": 30_000}
        connect_args = {"options": options, "application_name": "onefold store", **tcp}
        return sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=connect_args)
    raise ConfigError(f"a checkpoint store lives in SQLite or Postgres, not in {url.get_backend_name()!r}")


def _sqlite_settings(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _reason(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) and error.orig else error).strip()
