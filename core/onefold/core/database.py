"""A SQL database as the checkpoint store uses it: short durable transactions, and errors that say what took effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from onefold.core.errors import BadRecord, ConfigError, InDoubt, OnefoldError, OutOfResources, Retriable
from onefold.core.libpq import READ_ONLY, is_exhaustion, is_read_only, is_refusal

__all__ = ["Database"]

# A COMMIT that the server answers with these broke off in the middle (connection lost, server going down, or Postgres's
# own "completion unknown"); with any other it has rolled back, as for a deferred constraint.
_UNKNOWN_SQLSTATES = ("08", "57P", "40003")
_BAD_ROW_SQLSTATES = ("22", "23")  # a staged merge is part of the store's transaction

# What waiting can't cure: SQLSTATE classes of Postgres (wrong password or role, no such database, no permission),
# and SQLite's own words.
_HOPELESS_SQLSTATES = ("28", "3D", "42501")
_HOPELESS_WORDS = ("unable to open database file", "readonly database", "not a database", "is malformed")
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class Database:
    """One database by its SQLAlchemy URL: SQLite or Postgres."""

    def __init__(self, url: str, lock_timeout_s: float) -> None:
        try:
            self.url = sa.make_url(url)
            self.engine = _engine(self.url, lock_timeout_s)
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigError(f"the checkpoint store's URL is not usable: {error}") from error

    def __str__(self) -> str:
        return self.url.difference_update_query(_SECRETS).render_as_string(hide_password=True)

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can use it."""
        return self.url.get_backend_name() == "sqlite"

    def is_there(self) -> bool:
        """False for a SQLite file that a connection would only now create."""
        path = self.url.database
        return not self.is_local or path is None or path.startswith("file:") or Path(path).exists()

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
                if _was_refused(error):
                    raise self._without_effect("refused to commit", error) from error
                raise InDoubt(f"the checkpoint store at {self} did not answer a commit: {_reason(error)}") from error

    def _without_effect(self, what: str, error: SQLAlchemyError) -> OnefoldError:
        reason = _reason(error)
        state = _sqlstate(error)
        if state.startswith(_BAD_ROW_SQLSTATES):
            return BadRecord(f"the checkpoint store at {self} {what}: {reason}. Nothing was written")
        hopeless = state.startswith(_HOPELESS_SQLSTATES) or isinstance(error, ProgrammingError)
        unmet = not state and is_refusal(reason)
        if hopeless or unmet or any(word in reason for word in _HOPELESS_WORDS):
            return ConfigError(
                f"the checkpoint store at {self} {what}: {reason}. Check its URL, its password, and that the role or"
                " the folder may be written"
            )
        kind = OutOfResources if state.startswith("53") or is_exhaustion(reason) else Retriable
        hint = f". {READ_ONLY}" if is_read_only(reason) else ""
        return kind(f"the checkpoint store at {self} {what}: {reason}{hint}")


def _engine(url: sa.URL, lock_timeout_s: float) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": lock_timeout_s})
        sa.event.listen(engine, "connect", _sqlite_settings)
        sa.event.listen(engine, "begin", _sqlite_begin)
        return engine
    if url.get_backend_name() == "postgresql":
        defaults = {
            "application_name": "onefold store",
            "connect_timeout": 10,
            "keepalives_idle": 10,
            "tcp_user_timeout": 30_000,
            "target_session_attrs": "read-write",  # a standby takes connections too
        }
        # No statement is prepared by name, and no setting is the session's: a pooler in transaction mode gives each
        # transaction another one.
        connect_args = {key: value for key, value in defaults.items() if key not in url.query}
        engine = sa.create_engine(
            url,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            connect_args={**connect_args, "prepare_threshold": None},
        )
        settings = _transaction_settings(lock_timeout_s)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(settings))
        return engine
    raise ConfigError(f"a checkpoint store lives in SQLite or Postgres, not in {url.get_backend_name()!r}")


def _transaction_settings(lock_timeout_s: float) -> str:
    """A driver that was frozen or cut off in the middle of a transaction must not keep the pipeline's row locked."""
    settings = {
        "lock_timeout": int(lock_timeout_s * 1000),
        "idle_in_transaction_session_timeout": int(lock_timeout_s * 500),
        "tcp_keepalives_idle": 10,
        "tcp_user_timeout": 30_000,
    }
    chosen = "".join(f", set_config('{name}', '{value}', true)" for name, value in settings.items())
    stricter = "current_setting('synchronous_commit') = 'remote_apply'"
    return (
        f"SELECT set_config('synchronous_commit', CASE WHEN {stricter} THEN 'remote_apply' ELSE 'on' END, true){chosen}"
    )


def _sqlite_settings(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _sqlstate(error: SQLAlchemyError) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def _was_refused(error: SQLAlchemyError) -> bool:
    state = _sqlstate(error)
    return bool(state) and not state.startswith(_UNKNOWN_SQLSTATES)


def _reason(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) and error.orig else error).strip()
