"""A Postgres database as the checkpoint store uses it: by sessions as sinks have, with its tables in one schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg
import psycopg.conninfo

from onefold.clients.postgres import own_schema, sqlstates, trust
from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.message import Statement as Message
from onefold.clients.postgres.own_schema import OWN_SCHEMA
from onefold.clients.postgres.quoting import quoted, with_parameters
from onefold.clients.postgres.sessions import Connection
from onefold.clients.sql.database_backend import Answer, Backend, Meaning, Statement, reason
from onefold.clients.sql.url import DatabaseUrl
from onefold.core.errors import ConfigError

_SCHEMA = "schema"  # in a store's URL
_CONNECT_TIMEOUT_S = 10
_OWN = re.compile(r"\bonefold_(?!\w*_by_)")  # a table's name, and not an index's


class PostgresBackend(Backend):
    """Its connections are those of `onefold.clients.postgres.sessions`."""

    name, is_one_message, joins = "Postgres", True, True
    connection_type = Connection
    error, integrity_error = psycopg.Error, psycopg.IntegrityError

    def __init__(self, url: DatabaseUrl, *uses: Any, **limits: Any) -> None:
        super().__init__(url, *uses, **limits)
        self._schema = url.query.get(_SCHEMA, OWN_SCHEMA)
        if not self._schema or "," in self._schema:
            raise ConfigError("option-value", f"?{_SCHEMA}= in a store's URL names one schema, not {self._schema!r}")
        told = conninfo_of(url.without(_SCHEMA))
        self._info = pool.conninfo(told, self.application.removeprefix("onefold "), _CONNECT_TIMEOUT_S)

    def connect(self) -> Connection:
        return self.take()

    def take(self) -> Connection:
        return pool.take(self._info, self.who.removeprefix("the "))

    def give_back(self, connection: Connection) -> None:
        pool.give_back(self._info, connection)

    def close(self) -> None:
        pool.close_idle(self._info)

    def begin(self, connection: Connection, first: Sequence[Statement]) -> list[Answer]:
        """A driver that was frozen or cut off in mid-transaction must not keep the pipeline's row locked."""
        return self._begin(connection, self._messages(first))

    def begin_joined(
        self, connection: Connection, first: Sequence[Statement], before: Sequence[Message], after: Sequence[Message]
    ) -> list[Answer]:
        waiting = f"SET LOCAL lock_timeout = {int(self.lock_timeout_s * 1000)}", None
        found = self._begin(connection, [*before, waiting, *self._messages(first), *after])
        return [*found[: len(before)], *found[len(before) + 1 :]]

    def _begin(self, connection: Connection, first: Sequence[Message]) -> list[Answer]:
        wait_s, reads_only = self.lock_timeout_s, self.reads_only
        return connection.begin(wait_s, idle_s_max=wait_s / 2, first=first, reads_only=reads_only)

    def ask(self, connection: Connection, statements: Sequence[Statement]) -> list[Answer]:
        wait_s, reads_only = self.lock_timeout_s, self.reads_only
        return connection.begin(wait_s, first=self._messages(statements), then="COMMIT", reads_only=reads_only)

    def run(self, connection: Connection, statements: Sequence[Statement]) -> list[Answer]:
        return connection.together(*self._messages(statements))

    def commit(self, connection: Connection, last: Sequence[Statement]) -> None:
        connection.together(*self._messages(last), then="COMMIT")

    def _messages(self, statements: Sequence[Statement]) -> list[Message]:
        """What has no parameters is not prepared."""
        texts = [(self.text(text), values or None) for text, values in statements]
        return [(text if values else text.replace("%%", "%"), values) for text, values in texts]

    def _own_text(self, statement: str) -> str:
        schema = with_parameters(quoted(self._schema))
        return _OWN.sub(lambda _: f"{schema}.onefold_", statement)

    def tables(self, connection: Connection) -> set[str]:
        return own_schema.tables(connection, self._schema)

    def checked_tables(self, connection: Connection, names: Sequence[str], *, to_look: bool) -> set[str]:
        return own_schema.checked_tables(connection, names, self._schema, to_look=to_look)

    def lock_creation(self, connection: Connection) -> None:
        own_schema.lock(connection, self._schema, "tables")
        own_schema.check_rights(connection, [own_schema.LOCKS], self._schema, to_look=False)

    def making(self, connection: Connection | None) -> list[str]:
        assert connection is not None, "a Postgres database is there before it is asked"
        return own_schema.making_place(connection, self._schema)

    def check_ours(self, connection: Connection, names: Sequence[str] = (), *, to_look: bool = True) -> None:
        if names:
            trust.check_ours(connection, names, self._schema)
            own_schema.check_rights(connection, names, self._schema, to_look=to_look)

    def check_may_create(self, connection: Connection) -> None:
        own_schema.check_place(connection, self._schema)

    def meaning(self, error: Exception) -> Meaning:
        state = str(getattr(error, "sqlstate", None) or "")
        if not state and isinstance(error, psycopg.DataError):
            return Meaning.BAD_ROW
        if isinstance(error, psycopg.ProgrammingError) and not sqlstates.refuses_row(state):
            return Meaning.HOPELESS
        return sqlstates.meaning(state, reason(error))

    def hint(self, error: Exception) -> str:
        state = str(getattr(error, "sqlstate", None) or "")
        if sqlstates.lacks_identity(state, reason(error)):
            return f". {sqlstates.REPLICA_IDENTITY}"
        return f". {sqlstates.READ_ONLY}" if sqlstates.is_read_only(reason(error)) else ""


def conninfo_of(url: DatabaseUrl) -> str:
    """The URL for libpq. Hosts with their ports, `?host=one:5432&host=two:5433`, are told apart as libpq wants it."""
    told = dict(url.query)
    ends = [host.rpartition(":") for host in told.get("host", "").split(",")]
    if "port" not in told and all(host and port.isdigit() for host, _, port in ends):
        told |= {"host": ",".join(host for host, _, _ in ends), "port": ",".join(port for _, _, port in ends)}
    named = {"user": url.user, "password": url.password, "host": url.host, "port": url.port, "dbname": url.database}
    told |= {name: str(value) for name, value in named.items() if value not in (None, "")}
    try:
        return psycopg.conninfo.make_conninfo(**told)
    except psycopg.ProgrammingError as error:
        raise ValueError(reason(error)) from None


def store_url(url: str, role: str | None = None, schema: str = OWN_SCHEMA) -> str:
    """The same database as a store's URL, with every other parameter of `url` kept. `schema` is where the store has its
    tables."""
    told = {name: str(value) for name, value in pool.writable(url, role).items()}
    told |= {} if schema == OWN_SCHEMA else {_SCHEMA: schema}
    user, password, database = (told.pop(name, None) for name in ("user", "password", "dbname"))
    made = DatabaseUrl("postgresql+psycopg", user, password, database=database)
    if "," not in told.get("host", ",") and not told["host"].startswith("/"):  # others travel as parameters
        port = told.pop("port", None)
        made = replace(made, host=told.pop("host"), port=int(port) if port else None)
    return replace(made, query=told).whole()
