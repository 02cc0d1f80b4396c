"""Sessions of one database, for sources, sinks and the checkpoint store: kept per process and handed from task to task.

Nothing rests on a session's state, since a pooler in transaction mode gives each transaction another session: what a
transaction needs is set within it, and no statement is prepared by name where there is one. Only the role is the
session's: a parameter of its start, which a pooler passes on or refuses, and which is looked at after connecting.

Each transaction first sets the path by which names resolve, to schemas that nobody else can create anything in. So no
statement that looks a name up runs outside one.
"""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import Any

import psycopg
import psycopg.conninfo

from onefold.clients.per_process import PerProcess
from onefold.clients.postgres import driver_errors, sqlstates, trust
from onefold.clients.postgres.message import Statement, may_prepare, send
from onefold.clients.sql.database_backend import Answer
from onefold.core.checks import require
from onefold.core.errors import ConfigError, InDoubt, Retriable
from onefold.core.waiting import has_word

IDLE_MAX = 8
_FRESH_S = 1.0
_APPLICATION_NAME_BYTES_MAX = 63
# A standby takes connections too, and a service of several hosts may hand one out.
_WRITABLE = {"target_session_attrs": "read-write"}
_AS_ARROW = {"client_encoding": "UTF8"}  # of the texts that are copied as they are, whatever the database's encoding
# Both ends notice within a minute that the other one is gone, or has given the connection up behind a cut.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_USER_TIMEOUT = {"tcp_user_timeout": 60_000}  # ms that sent bytes may stay unacknowledged
_OPTION = re.compile(r"(?:\\.|[^\s\\])+", re.DOTALL)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A session in autocommit whose every statement runs in a transaction that has set the path."""

    _path = "pg_catalog, pg_temp"
    _lifted: Sequence[str] = ()  # statements
    used_s = 0.0  # on the monotonic clock
    is_pooled = True  # a pooler stands between, as far as is known

    def find_out(self) -> None:
        """Once, after connecting. A safe path stays so, unless the schema's own owner lets others in; and what the
        session's client has set stays its wish."""
        asked = (*trust.SAFE_PATH, "SHOW search_path", sqlstates.LIMITS, "SELECT pg_backend_pid()")
        *_, path, limits, pid = self.ask(*((statement, None) for statement in asked))
        self._path, self._lifted = path[0][0], sqlstates.lifting(limits)
        self.is_pooled = bool(pid[0][0] != self.info.backend_pid)  # a pooler invents those that it tells its clients
        if not self.is_pooled:
            may_prepare(self)

    def execute(self, query: Any, params: Any = None, **kwargs: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        if not self._is_idle:
            return super().execute(query, params, **kwargs)
        cursor = psycopg.ClientCursor(self)
        with self._undoing():
            cursor.execute(f"{self._beginning()};{cursor.mogrify(query, params)};COMMIT".encode())
        for _ in range(2):  # past BEGIN and SET
            cursor.nextset()
        return cursor

    def together(self, *statements: Statement, before: str = "", then: str = "") -> list[Answer]:
        """What these statements of an epoch answer, each by itself, sent in one message: in the transaction at hand,
        where `before` sets what they need and `then` ends it, or in one of their own."""
        if not self._is_idle:
            return send(psycopg.ClientCursor(self), statements, before=before, after=then)
        require(not before and not then, "a message that ends a transaction needs one")
        with self._undoing():
            return send(psycopg.ClientCursor(self), statements, before=self._beginning(), after="COMMIT")

    def ask(self, *statements: Statement) -> list[list[Any]]:
        """The rows of each of these statements, sent in one message as by `together`: for what is asked once, and so
        is not prepared."""
        cursor = psycopg.ClientCursor(self)
        texts = [(cursor.mogrify(query, parameters), None) for query, parameters in statements]
        return [answer.rows for answer in self.together(*texts)]

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Around a message that begins a transaction."""
        try:
            yield
        except psycopg.Error:
            with suppress(psycopg.Error):
                self.rollback()
            raise

    @contextmanager
    def transaction(  # type: ignore[override]  # no Transaction to take
        self, lock_timeout_s: float | None = None, *, is_durable: bool = True
    ) -> Iterator[None]:
        """A transaction, or a part of the one at hand, which is undone by itself and sets nothing. The settings are
        those of `_beginning`."""
        if not self._is_idle:
            with super().transaction():
                yield
            return
        self.outside(self._beginning(lock_timeout_s, is_durable=is_durable).encode())
        try:
            yield
        except BaseException:
            with suppress(psycopg.Error):
                self.outside(b"ROLLBACK")
            raise
        self.outside(b"COMMIT")

    def begin(
        self, lock_timeout_s: float, *, first: Sequence[Statement] = (), then: str = "", **settings: Any
    ) -> list[Answer]:
        """Start a transaction in one round trip with its `first` statements; returns what these answer. `then` ends it
        there. `settings` are those of `_beginning`."""
        with self._undoing():
            before = self._beginning(lock_timeout_s, **settings)
            return send(psycopg.ClientCursor(self), first, before=before, after=then)

    def _beginning(
        self,
        lock_timeout_s: float | None = None,
        *,
        idle_s_max: float | None = None,
        is_durable: bool = True,
        reads_only: bool = False,
    ) -> str:
        """What begins a transaction: with a time, as sinks and stores want it.

        One that need not be durable waits for no disk: `synchronous_commit` is raised to `on` for others, and a
        stricter `remote_apply` left alone. (COMMIT and ROLLBACK PREPARED run outside any transaction, and always flush:
        twophase.c.) One that is idle for longer than `idle_s_max` is ended by the server, and its locks with it. With
        `reads_only` it changes nothing, and no statement takes over `lock_timeout_s`. Limits on the time of a statement
        or transaction that are the role's, the database's or the server's would end a long COPY again and again: they
        are lifted. What the URL's own `options` set is the user's wish, and stays.
        """
        begun = ["BEGIN ISOLATION LEVEL READ COMMITTED", f"SET LOCAL search_path = {self._path}"]
        if lock_timeout_s is not None:
            begun[0] += " READ ONLY" if reads_only else " READ WRITE"
            begun += [_lasting_settings(lock_timeout_s, is_durable=is_durable), *self._lifted]
        if idle_s_max is not None:
            begun.append(f"SET LOCAL idle_in_transaction_session_timeout = {int(idle_s_max * 1000)}")
        if reads_only and lock_timeout_s is not None:
            begun.append(f"SET LOCAL statement_timeout = {int(lock_timeout_s * 1000)}")
        return ";".join(begun)

    @property
    def is_there(self) -> bool:
        """Whether the server still has it. One that was used a moment ago is not asked while its socket is silent: a
        server that ends a connection says so there."""
        if time.monotonic() - self.used_s < _FRESH_S and not has_word(self.fileno()):
            return True
        try:
            self.outside(b"")  # a round trip
        except psycopg.Error:
            return False
        return True

    @property
    def _is_idle(self) -> bool:
        return self.info.transaction_status is psycopg.pq.TransactionStatus.IDLE

    def outside(self, statement: bytes) -> None:
        """Run what cannot be in a transaction, and looks no name up."""
        super().execute(statement)


_idle = PerProcess(dict[str, list[Connection]])  # by conninfo


def _parameters(url: str) -> dict[str, Any]:
    """Raises ConfigError, which quotes nothing of the URL: what stands in the port's place may be of the password."""
    with suppress(psycopg.Error):
        found = dict(psycopg.conninfo.conninfo_to_dict(url))
        if re.fullmatch(r"[0-9,]*", str(found.get("port") or "")):
            return found
    raise ConfigError(
        "url-unreadable",
        "the Postgres URL cannot be read: write postgresql://user:password@host:port/database, "
        "with odd characters percent-encoded",
    )


@lru_cache(maxsize=64)  # each task asks for its own
def conninfo(
    url: str, pipeline: str, connect_timeout_s: int, role: str | None = None, *, is_writer: bool = True
) -> str:
    """`url` with what a long-running client needs; what `url` itself says wins, except over `role` and the encoding.

    A writer is not content with a standby.
    """
    name = f"onefold {pipeline}".encode()[:_APPLICATION_NAME_BYTES_MAX].decode(errors="ignore")
    defaults = {
        "connect_timeout": connect_timeout_s,
        "application_name": name,
        "keepalives": 1,
        **_KEEPALIVES,
        **_USER_TIMEOUT,
        **(_WRITABLE if is_writer else {}),
    }
    parameters = {**defaults, **_as_role(_parameters(url), role), **_AS_ARROW}
    return psycopg.conninfo.make_conninfo(**dict(sorted(parameters.items())))  # sessions are found by this text


def writable(url: str, role: str | None) -> dict[str, Any]:
    """libpq's parameters of `url`, for a session that is not content with a standby and starts as `role`."""
    return _WRITABLE | _as_role(_parameters(url), role)


def _as_role(parameters: dict[str, Any], role: str | None) -> dict[str, Any]:
    """A session that starts as `role` comes back to it on RESET ROLE, and whoever takes it from the pool has it."""
    if role is None:
        return parameters
    given = [str(parameters["options"])] if parameters.get("options") else []
    escaped = re.sub(r"([\s\\])", r"\\\1", role)
    return {**parameters, "options": " ".join([*given, f"-c role={escaped}"])}


def starts_as(parameters: dict[str, Any]) -> str | None:
    """The role that the startup parameter `options` asks for: the last one wins."""
    role = None
    for option in _OPTION.findall(str(parameters.get("options") or "")):
        text = re.sub(r"\\(.)", r"\1", option, flags=re.DOTALL)
        name, _, value = text.removeprefix("--").removeprefix("-c").partition("=")
        role = value if name == "role" else role
    return role


def _connect(info: str, whose: str, fewer: str) -> Connection:
    parameters = psycopg.conninfo.conninfo_to_dict(info)
    connection: Connection | None = None
    try:
        connection = Connection.connect(info, autocommit=True, prepare_threshold=None)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        role = starts_as(parameters)
        if role is not None:
            _check_role(connection, role)
        connection.find_out()
        return connection
    except psycopg.Error as error:
        if connection is not None:
            connection.close()
        raise driver_errors.of_connecting(error, parameters, whose, fewer) from None


def _check_role(connection: Connection, role: str) -> None:
    ((user,),) = connection.execute("SELECT current_user")
    if user != role:
        connection.close()
        raise ConfigError(
            "pooler-drops-role",
            f"the session was to start as role {role!r} and is {user!r}: a pooler between has dropped the startup "
            f"parameter `options`. Make it the login role's default in the server itself (ALTER ROLE {user} SET role "
            f"= '{role}'), or connect to the server directly",
        )


def take(info: str, whose: str = "sink", fewer: str = "Fewer tasks at once") -> Connection:
    """A connection outside any transaction, in autocommit. `whose` it is, and `fewer` what needs fewer connections, is
    for people. Raises Retriable or ConfigError."""
    while True:
        with _idle.lock:
            idle = _idle.now.get(info)
            connection = idle.pop() if idle else None
        if connection is None:
            return _connect(info, whose, fewer)
        if connection.is_there:
            return connection
        connection.close()


def give_back(info: str, connection: Connection) -> None:
    status = connection.info.transaction_status
    with _idle.lock:
        idle = _idle.now.setdefault(info, [])
        if not connection.closed and status is psycopg.pq.TransactionStatus.IDLE and len(idle) < IDLE_MAX:
            connection.used_s = time.monotonic()
            idle.append(connection)
            return
    connection.close()


@contextmanager
def borrow(info: str, doing: str, lost: type[Retriable | InDoubt] = Retriable) -> Iterator[Connection]:
    """A connection for a block; Postgres's errors leave it as onefold's, a lost connection as `lost`."""
    connection = take(info)
    try:
        yield connection
    except psycopg.Error as error:
        translated = driver_errors.translate(error, doing, connection, lost=lost)
        connection.close()
        raise translated from error
    except BaseException:
        connection.close()
        raise
    else:
        give_back(info, connection)


@cache
def _lasting_settings(lock_timeout_s: float, *, is_durable: bool) -> str:
    """The server looks after its end of the connection as we do after ours: no time limit reaches a COPY whose client
    is gone without a word, and the server would wait for it for hours."""
    committing = sqlstates.DURABLE if is_durable else "SET LOCAL synchronous_commit = off"
    network = {f"tcp_{name}": value for name, value in _KEEPALIVES.items()} | _USER_TIMEOUT
    settings = {"lock_timeout": int(lock_timeout_s * 1000), **network}
    return "".join(f"SET LOCAL {name} = {value};" for name, value in settings.items()) + committing


def create_beside_others(connection: Connection, statement: str) -> None:
    """Run a CREATE inside the caller's transaction. Whoever makes the same thing at that moment is waited for."""
    try:
        with connection.transaction():
            connection.execute(statement.encode())
    except psycopg.Error as error:
        if not sqlstates.is_there_already(error.sqlstate):
            raise


def close_idle(info: str) -> None:
    with _idle.lock:
        connections = _idle.now.pop(info, [])
    for connection in connections:
        connection.close()


@atexit.register
def _close_all() -> None:
    for info in list(_idle.now):
        close_idle(info)
