"""Connections to one database, kept per process and handed from task to task."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg.conninfo

from onefold.core.errors import ConfigError, OnefoldError, Retriable
from onefold.sinks.postgres import errors

__all__ = [
    "Connection",
    "begin",
    "borrow",
    "close_idle",
    "conninfo",
    "discard",
    "give_back",
    "store_url",
    "take",
    "transaction_settings",
]

Connection = psycopg.Connection[tuple[Any, ...]]

IDLE_MAX = 8
_APPLICATION_NAME_BYTES_MAX = 63

# COMMIT PREPARED runs outside any transaction, so a session as such must be durable too.
_SESSION = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') <> 'remote_apply'"
)

_lock = threading.Lock()
# Keyed by process: a forked child must neither use nor close its parent's sockets, so it leaves them where they are.
_idle: dict[tuple[int, str], list[Connection]] = {}


def _parameters(url: str) -> dict[str, Any]:
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(url))
    except psycopg.Error:
        # libpq's message would quote the text, password included.
        raise ConfigError(
            "the Postgres URL cannot be read: write postgresql://user:password@host:port/database, "
            "with odd characters percent-encoded"
        ) from None


def conninfo(url: str, pipeline: str, connect_timeout_s: int) -> str:
    """`url` with what a long-running client needs; what `url` itself says wins."""
    name = f"onefold {pipeline}".encode()[:_APPLICATION_NAME_BYTES_MAX].decode(errors="ignore")
    defaults = {
        "connect_timeout": connect_timeout_s,
        "application_name": name,
        "client_encoding": "UTF8",
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,  # ms that sent bytes may stay unacknowledged
    }
    return psycopg.conninfo.make_conninfo(**{**defaults, **_parameters(url)})


def store_url(url: str) -> str:
    """The same database as an SQLAlchemy URL for psycopg, with every other parameter of `url` kept."""
    parameters = {key: str(value) for key, value in _parameters(url).items()}
    user, password = parameters.pop("user", None), parameters.pop("password", None)
    host, port = parameters.pop("host", None), parameters.pop("port", None)
    database = parameters.pop("dbname", None)
    single = host is not None and "," not in host and not host.startswith("/")
    if not single:  # sockets and lists of hosts travel as parameters
        parameters |= {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    import sqlalchemy as sa  # the driver's business: a worker starts sooner without it

    return sa.URL.create(
        "postgresql+psycopg",
        username=user,
        password=password,
        host=host if single else None,
        port=int(port) if single and port else None,
        database=database,
        query=parameters,
    ).render_as_string(hide_password=False)


def _connect(info: str) -> Connection:
    connection: Connection | None = None
    try:
        connection = psycopg.connect(info, autocommit=True)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.execute(_SESSION)
        return connection
    except psycopg.Error as error:
        if connection is not None:
            connection.close()
        raise errors.of_connecting(error, psycopg.conninfo.conninfo_to_dict(info)) from None


def take(info: str) -> Connection:
    """A connection outside any transaction, in autocommit. Raises Retriable or ConfigError."""
    key = (os.getpid(), info)
    while True:
        with _lock:
            idle = _idle.get(key)
            connection = idle.pop() if idle else None
        if connection is None:
            return _connect(info)
        try:
            connection.execute("")  # a round trip: the server may have gone since
        except psycopg.Error:
            discard(connection)
        else:
            return connection


def give_back(info: str, connection: Connection) -> None:
    status = connection.info.transaction_status
    with _lock:
        idle = _idle.setdefault((os.getpid(), info), [])
        if not connection.closed and status is psycopg.pq.TransactionStatus.IDLE and len(idle) < IDLE_MAX:
            idle.append(connection)
            return
    discard(connection)


def discard(connection: Connection) -> None:
    connection.close()


@contextmanager
def borrow(info: str, doing: str, lost: type[OnefoldError] = Retriable) -> Iterator[Connection]:
    """A connection for a block; Postgres's errors leave it as onefold's, a lost connection as `lost`."""
    connection = take(info)
    try:
        yield connection
    except psycopg.Error as error:
        translated = errors.translate(error, doing, connection, lost=lost)
        discard(connection)
        raise translated from error
    except BaseException:
        discard(connection)
        raise
    else:
        give_back(info, connection)


def transaction_settings(lock_timeout_s: float) -> str:
    """`synchronous_commit` is raised to `on`, and a stricter `remote_apply` left alone."""
    return (
        f"SET LOCAL lock_timeout = {int(lock_timeout_s * 1000)};"
        "SELECT set_config('synchronous_commit', 'on', true)"
        " WHERE current_setting('synchronous_commit') <> 'remote_apply'"
    )


def begin(lock_timeout_s: float) -> str:
    """Statements that start a transaction as this sink wants it, in one round trip."""
    return f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {transaction_settings(lock_timeout_s)}"


def close_idle(info: str) -> None:
    with _lock:
        connections = _idle.pop((os.getpid(), info), [])
    for connection in connections:
        connection.close()


@atexit.register
def _close_all() -> None:
    for pid, info in list(_idle):
        if pid == os.getpid():
            close_idle(info)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
