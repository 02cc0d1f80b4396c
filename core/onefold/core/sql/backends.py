"""What differs between the databases that a checkpoint store, or a sink that shares its transactions, can live in.

One class for each: how a connection is made durable and bounded in waiting, how two that create tables at once keep
out of each other's way, and what an error means.
"""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, ProgrammingError, SQLAlchemyError

from onefold.core.checks import present
from onefold.core.errors import ConfigError
from onefold.core.sql import mariadb_trust, postgres_errors, postgres_schema, postgres_trust, sqlite_trust
from onefold.core.sql.meaning import Meaning
from onefold.core.sql.postgres_message import Answer, Statement, may_prepare, send
from onefold.core.values.plain import SAID_MAX, plain
from onefold.core.waiting import has_word

__all__ = ["Backend", "Bound", "backend_of", "reason", "url_of"]

Bound = tuple[sa.Executable, Mapping[str, Any]]  # a statement that is built once, and the values of its parameters

IDLE_S_MAX = 3600
FRESH_S = 1.0  # a connection that was used so short a time ago is taken as it is
_BEGIN, _FIRST = "onefold_begin", "onefold_first"
_WAL = "PRAGMA journal_mode=WAL"


class Backend(ABC):
    """One kind of database. `is_local`: only processes of this machine can use it."""

    name: ClassVar[str]  # as people call it
    driver: ClassVar[str]  # the one whose errors are known here
    is_local: ClassVar[bool] = False
    commits_at_the_end: ClassVar[bool] = False  # see `end`
    tells_rights: ClassVar[bool] = True  # whether `check_may_create` finds a missing right, before a try does

    @abstractmethod
    def engine(self, url: sa.URL, lock_timeout_s: float, application: str) -> sa.Engine:
        """An engine whose sessions commit durably, read committed, and wait at most `lock_timeout_s` for a lock."""

    @abstractmethod
    def only_read(self, engine: sa.Engine, within_s: float) -> None:
        """From here on its transactions change nothing, hold no writer up, and have statements of at most so long."""

    @abstractmethod
    def meaning(self, error: SQLAlchemyError) -> Meaning: ...

    def hint(self, error: SQLAlchemyError) -> str:
        """What to do about the error, as the end of its text; nothing where the text says all that is known."""
        del error
        return ""

    def begin(self, connection: sa.Connection, first: Sequence[Bound]) -> list[Answer]:
        """Begin a transaction; returns what its first statements answer."""
        connection.begin()
        return self.run(connection, first)

    def run(self, connection: sa.Connection, statements: Sequence[Bound]) -> list[Answer]:
        """What the statements answer, one after the other."""
        found = [connection.execute(statement, values) for statement, values in statements]
        return [Answer(list(each) if each.returns_rows else [], each.rowcount) for each in found]

    def end(self, connection: sa.Connection, statements: Sequence[Bound]) -> None:
        """Run the transaction's last statements; with `commits_at_the_end`, and commit it."""
        self.run(connection, statements)

    def let_idle(self, connection: sa.Connection) -> None:
        """Let the transaction at hand be idle for up to `IDLE_S_MAX`: it locks nothing that others wait for."""
        del connection

    @contextmanager
    def alone(self, engine: sa.Engine) -> Iterator[None]:
        """Around a transaction that creates tables, where its own locks don't keep others out."""
        del engine
        yield

    def lock_creation(self, connection: sa.Connection) -> None:
        """Inside a transaction that creates tables, where they are part of it."""
        del connection

    def making(self, connection: sa.Connection | None) -> list[str]:
        """The statements by which `alone` and `lock_creation` make or alter something; None where there is no database
        yet. Raises ConfigError."""
        del connection
        return []

    def check_ours(self, connection: sa.Connection) -> None:
        """Raise ConfigError where somebody else has put something in place of onefold's own tables."""
        del connection

    def check_may_work(self, connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
        """Raise what the database raises where this session may not read, or write to, onefold's own tables."""
        del connection, tables

    def check_may_create(self, connection: sa.Connection) -> None:
        """Raise ConfigError where this session may not make onefold's own tables, as far as the database tells."""
        del connection


class SqliteBackend(Backend):
    name, driver, is_local = "SQLite", "pysqlite", True

    _HOPELESS = ("unable to open database file", "readonly database", "not a database", "is malformed")
    _HOPELESS_CODES = ("SQLITE_ERROR", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_TOOBIG", "SQLITE_RANGE")
    _BAD_ROW_CODES = ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH")

    def engine(self, url: sa.URL, lock_timeout_s: float, application: str) -> sa.Engine:
        del application
        engine = sa.create_engine(url, connect_args={"timeout": lock_timeout_s})
        sa.event.listen(engine, "connect", self._set)
        sa.event.listen(engine, "begin", self._begin)
        path = url.database
        if path and path != ":memory:" and not path.startswith("file:"):
            sa.event.listen(engine, "do_connect", lambda *_: sqlite_trust.prepare(Path(path)))
        return engine

    @staticmethod
    def _set(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        connection.execute("PRAGMA synchronous=EXTRA")  # durable also where the file's own mode is not WAL

    @staticmethod
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def only_read(self, engine: sa.Engine, within_s: float) -> None:
        del within_s  # a read of the WAL waits for nobody
        sa.event.remove(engine, "begin", self._begin)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only=ON"))

    @contextmanager
    def alone(self, engine: sa.Engine) -> Iterator[None]:
        """Sets the mode WAL, which stays in the file: so only a start does it, and whoever looks leaves it alone."""
        with engine.connect() as connection:
            for statement in ("COMMIT", _WAL):  # inside a transaction the mode cannot change
                connection.exec_driver_sql(statement)
        yield

    def making(self, connection: sa.Connection | None) -> list[str]:
        journal = None if connection is None else connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        return [] if journal in ("wal", "memory") else [_WAL]

    def meaning(self, error: SQLAlchemyError) -> Meaning:
        code = str(getattr(getattr(error, "orig", None), "sqlite_errorname", None) or "")
        if code.startswith(self._BAD_ROW_CODES):
            return Meaning.BAD_ROW
        if code in self._HOPELESS_CODES or any(word in reason(error) for word in self._HOPELESS):
            return Meaning.HOPELESS
        # COMMIT says FULL only where its last page, which makes it one, found no room in the WAL.
        return {"SQLITE_BUSY": Meaning.PASSING, "SQLITE_FULL": Meaning.EXHAUSTED}.get(code, Meaning.BROKEN)


class PostgresBackend(Backend):
    name, driver, commits_at_the_end = "Postgres", "psycopg", True

    def __init__(self) -> None:
        self._compiled: dict[sa.Executable, tuple[str, dict[str, Any]]] = {}  # text, and parameters with a value

    def engine(self, url: sa.URL, lock_timeout_s: float, application: str) -> sa.Engine:
        defaults: dict[str, Any] = {
            "application_name": application,
            "connect_timeout": 10,
            "keepalives_idle": 10,
            "tcp_user_timeout": 30_000,
            "target_session_attrs": "read-write",  # a standby takes connections too
        }
        url, schema = postgres_schema.apart(url)
        # No setting is the session's, and the driver prepares no statement by name: a pooler in transaction mode gives
        # each transaction another one. Sinks copy Arrow's texts as they are, in UTF-8, whatever the database's is.
        connect_args = {key: value for key, value in defaults.items() if key not in url.query}
        connect_args |= {"prepare_threshold": None, "client_encoding": "UTF8"}
        # The driver begins no transaction: BEGIN goes with what each one sets, in one message.
        engine = sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            connect_args=connect_args,
            execution_options={"schema_translate_map": {None: schema}},
            use_native_hstore=False,  # or each connection looks a type up before its first transaction sets the path
        )
        settings = self._settings(lock_timeout_s)

        def find_path(connection: Any, record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                for statement in postgres_trust.SAFE_PATH:
                    cursor.execute(statement)
                (path,) = cursor.fetchone()
                lifted = postgres_errors.lifting(cursor.execute(postgres_errors.LIMITS))
                ((pid,),) = cursor.execute("SELECT pg_catalog.pg_backend_pid()")
            connection.rollback()
            if pid == connection.info.backend_pid:  # a pooler invents its own
                may_prepare(connection)
            begun = ["BEGIN ISOLATION LEVEL READ COMMITTED", f"SET LOCAL search_path = {path}", settings, *lifted]
            record.info[_BEGIN] = ";".join(begun)

        def begin(connection: sa.Connection) -> None:
            first = connection.get_execution_options().get(_FIRST, ())
            connection.info[_FIRST] = self._send(connection, first, before=connection.info[_BEGIN])

        sa.event.listen(engine, "connect", find_path)
        sa.event.listen(engine, "begin", begin)
        _ping_what_was_idle(engine)
        return engine

    def only_read(self, engine: sa.Engine, within_s: float) -> None:
        limited = f"SELECT set_config('statement_timeout', '{int(within_s * 1000)}', true)"

        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            connection.exec_driver_sql(limited)

        sa.event.listen(engine, "begin", begin)

    def begin(self, connection: sa.Connection, first: Sequence[Bound]) -> list[Answer]:
        connection.execution_options(**{_FIRST: first}).begin()
        found: list[Answer] = connection.info.pop(_FIRST)
        return found

    def run(self, connection: sa.Connection, statements: Sequence[Bound]) -> list[Answer]:
        return self._send(connection, statements)

    def end(self, connection: sa.Connection, statements: Sequence[Bound]) -> None:
        self._send(connection, statements, after="COMMIT")

    def _send(
        self, connection: sa.Connection, statements: Sequence[Bound], before: str = "", after: str = ""
    ) -> list[Answer]:
        """Past SQLAlchemy, which sends one statement at a time, and takes as long for it as the server does."""
        psycopg: Any = connection.dialect.loaded_dbapi
        cursor = psycopg.ClientCursor(connection.connection.driver_connection, row_factory=psycopg.rows.namedtuple_row)
        texts = [self._text(connection, *each) for each in statements]
        try:
            return send(cursor, texts, before=before, after=after)
        except psycopg.Error as error:
            raise DBAPIError.instance(None, None, error, psycopg.Error, dialect=connection.dialect) from error

    def _text(self, connection: sa.Connection, statement: sa.Executable, values: Mapping[str, Any]) -> Statement:
        if statement not in self._compiled:
            schemas = connection.get_execution_options()["schema_translate_map"]
            compiled = statement.compile(  # type: ignore[attr-defined]  # every statement has it
                dialect=connection.dialect, schema_translate_map=schemas, render_schema_translate=True
            )
            self._compiled[statement] = compiled.string, compiled.params
        text, defaults = self._compiled[statement]
        return text, {**defaults, **values}

    @staticmethod
    def _settings(lock_timeout_s: float) -> str:
        """A driver that was frozen or cut off in mid-transaction must not keep the pipeline's row locked."""
        settings = {
            "lock_timeout": int(lock_timeout_s * 1000),
            "idle_in_transaction_session_timeout": int(lock_timeout_s * 500),
            "tcp_keepalives_idle": 10,
            "tcp_user_timeout": 30_000,
        }
        chosen = [f"SET LOCAL {name} = {value}" for name, value in settings.items()]
        return ";".join([*chosen, postgres_errors.DURABLE])

    def hint(self, error: SQLAlchemyError) -> str:
        state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
        if postgres_errors.lacks_identity(state, reason(error)):
            return f". {postgres_errors.REPLICA_IDENTITY}"
        return f". {postgres_errors.READ_ONLY}" if postgres_errors.is_read_only(reason(error)) else ""

    def lock_creation(self, connection: sa.Connection) -> None:
        """Two that create the same table would collide in the catalogue: as they may here, and then wait."""
        ask = postgres_trust.asked(connection)
        schema = present(postgres_schema.own_schema(connection), "every connection of this engine has a schema")
        locks = f"{postgres_trust.quoted(schema)}.onefold_locks"
        postgres_trust.check_ours(ask, ["onefold_locks"], schema)
        for statement in self.making(connection):
            self._create(connection, statement)
        postgres_schema.check_tables(connection, ["onefold_locks"])
        postgres_trust.take_turn(ask, locks, "tables")

    def making(self, connection: sa.Connection | None) -> list[str]:
        there = present(connection, "a Postgres database is there before it is asked")
        schema = present(postgres_schema.own_schema(there), "every connection of this engine has a schema")
        return postgres_schema.making_place(postgres_trust.asked(there), schema)

    @staticmethod
    def _create(connection: sa.Connection, statement: str) -> None:
        try:
            with connection.begin_nested():
                connection.exec_driver_sql(statement.replace("%", "%%"))
        except DBAPIError as error:
            if not postgres_errors.is_there_already(getattr(error.orig, "sqlstate", None)):
                raise

    def check_may_create(self, connection: sa.Connection) -> None:
        schema = present(postgres_schema.own_schema(connection), "every connection of this engine has a schema")
        postgres_schema.check_place(postgres_trust.asked(connection), schema)

    def meaning(self, error: SQLAlchemyError) -> Meaning:
        state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
        if not state and isinstance(error, DataError):
            return Meaning.BAD_ROW
        if isinstance(error, ProgrammingError) and not postgres_errors.refuses_row(state):
            return Meaning.HOPELESS
        return postgres_errors.meaning(state, reason(error))


class MariaDbBackend(Backend):
    """MariaDB, and MySQL where it behaves the same. DDL commits by itself here, so a lock outside the transaction
    keeps two that create tables apart."""

    name, driver, tells_rights = "MariaDB", "pymysql", False

    # Of MariaDB's errmsg.h and mysqld_error.h; PyMySQL drops the SQLSTATE that the server sends. What is in none of
    # these may go away: a lock, a deadlock, a server that is read only until another takes over.
    _BAD_ROW = (
        *(1048, 1062, 1216, 1217, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1451, 1452, 1586, 1690, 1761, 1762),
        *(1644, 1918, 3819, 4025),  # 1644: a trigger's SIGNAL
    )
    _HOPELESS = (
        # who, and what they may
        *(1044, 1045, 1130, 1131, 1141, 1142, 1143, 1147, 1148, 1175, 1211, 1227, 1251, 1370, 1396, 1419, 1524, 1698),
        *(1820, 1862, 1873, 4151),
        # SQLSTATE class 42 and the like: names that are not there, twice there, or none
        *(1046, 1049, 1051, 1052, 1054, 1060, 1063, 1066, 1091, 1109, 1110, 1146, 1176, 1193, 1247, 1305, 1932),
        *(1059, 1102, 1103, 1166, 1280, 1281, 1300),
        # what a table, a column or a key cannot be
        *(1067, 1068, 1069, 1070, 1071, 1072, 1073, 1074, 1075, 1089, 1113, 1115, 1117, 1118, 1121, 1163, 1164, 1167),
        *(1170, 1171, 1173, 1178, 1253, 1286, 1288, 1293, 1294, 1347, 1356, 1439, 1471, 1901, 1903, 1904, 1907, 1910),
        *(1965, 1967, 1996, 1997),
        # what a statement cannot say, or a setting cannot be
        *(1055, 1056, 1058, 1064, 1065, 1104, 1107, 1111, 1136, 1138, 1139, 1140, 1149, 1153, 1162, 1210, 1222, 1230),
        *(1231, 1232, 1234, 1235, 1241, 1248, 1250, 1267, 1270, 1271, 1273, 1275, 1318, 1442, 1582, 1583, 1665),
        2026,  # TLS that the URL asks for, and the server has not
    )
    _EXHAUSTED = (1021, 1037, 1038, 1040, 1041, 1114, 1135, 1203, 1206, 1226, 1637, 1998)
    # 1180 and 1196 are COMMIT's own: part of it may have been done.
    _BROKEN = (0, 1053, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1196, 1317, 1927, 2006, 2013, 2014, 2055)
    _PASSING_FROM, _CLIENT_FROM = 1000, 2000
    _SQL_MODE = (
        "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_AUTO_VALUE_ON_ZERO,"
        "NO_ENGINE_SUBSTITUTION"
    )

    def engine(self, url: sa.URL, lock_timeout_s: float, application: str) -> sa.Engine:
        del application
        wait_s = max(1, math.ceil(lock_timeout_s))
        # A driver that was frozen or cut off in the middle of a transaction must not keep the pipeline's row locked.
        idle_s = max(1, int(lock_timeout_s / 2))

        def configure(connection: Any, _record: Any) -> None:
            settings = {
                "time_zone": "'+00:00'",
                "innodb_lock_wait_timeout": wait_s,
                "lock_wait_timeout": wait_s,
                "wait_timeout": f"GREATEST(@@wait_timeout, {IDLE_S_MAX})",  # it also counts inside transactions
            }
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION " + ", ".join(f"{name}={value}" for name, value in settings.items()))
                cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
                (flush,) = cursor.fetchone()
            connection.rollback()
            if "read_timeout" not in url.query:
                connection._read_timeout = None  # what comes after the handshake may take its time: a merge
            if flush != 1:
                warnings.warn(
                    f"innodb_flush_log_at_trx_commit is {flush} on {url.host}: a crash there may take back what was "
                    "acknowledged, and exactly-once with it. SET GLOBAL innodb_flush_log_at_trx_commit = 1",
                    RuntimeWarning,
                    stacklevel=2,
                )

        if "local_infile" in url.query:
            raise ConfigError(
                "option-not-allowed",
                "local_infile in a URL lets the server read any file of this machine: leave it out",
            )
        # The mode comes first, since SQLAlchemy quotes names as the server's own one wants it (ANSI_QUOTES) until then.
        # MySQL's default lets a value that doesn't fit be bent. PyMySQL's own limit ends before the server's greeting.
        connect_s = int(str(url.query.get("connect_timeout", 10)))
        connect_args = {"charset": "utf8mb4", "sql_mode": self._SQL_MODE, "connect_timeout": connect_s}
        if "read_timeout" not in url.query:
            connect_args["read_timeout"] = connect_s
        engine = sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=connect_args)
        sa.event.listen(engine, "connect", configure)
        sa.event.listen(engine, "begin", lambda connection: self._limit(connection, idle_s))
        return engine

    def only_read(self, engine: sa.Engine, within_s: float) -> None:
        def configure(connection: Any, _record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
            connection.rollback()

        def begin(connection: sa.Connection) -> None:
            if getattr(connection.dialect, "is_mariadb", False):
                connection.exec_driver_sql(f"SET SESSION max_statement_time = {within_s:g}")

        sa.event.listen(engine, "connect", configure)
        sa.event.listen(engine, "begin", begin)

    @staticmethod
    def _limit(connection: sa.Connection, idle_s: int) -> None:
        """Limits how long a transaction is idle; lifts the server's limit on statements, which would end a merge."""
        if getattr(connection.dialect, "is_mariadb", False):  # MySQL has no such limits
            connection.exec_driver_sql(f"SET SESSION idle_transaction_timeout = {idle_s}, max_statement_time = 0")

    def let_idle(self, connection: sa.Connection) -> None:
        self._limit(connection, IDLE_S_MAX)  # the session's next transaction sets it back

    @contextmanager
    def alone(self, engine: sa.Engine) -> Iterator[None]:
        with mariadb_trust.turn(engine, self.let_idle):
            yield

    def making(self, connection: sa.Connection | None) -> list[str]:
        return mariadb_trust.making(present(connection, "a MariaDB database is there before it is asked"))

    def check_ours(self, connection: sa.Connection) -> None:
        mariadb_trust.check_ours(connection)

    def check_may_work(self, connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
        for table in tables:
            mariadb_trust.check_rights(connection, table)

    def meaning(self, error: SQLAlchemyError) -> Meaning:
        arguments = getattr(getattr(error, "orig", None), "args", ())
        number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        if number in self._BAD_ROW:
            return Meaning.BAD_ROW
        if number in self._HOPELESS or "CERTIFICATE_VERIFY_FAILED" in reason(error):
            return Meaning.HOPELESS
        if number in self._EXHAUSTED:
            return Meaning.EXHAUSTED
        is_the_servers = self._PASSING_FROM <= number < self._CLIENT_FROM or number > self._CLIENT_FROM + 1000
        return Meaning.PASSING if is_the_servers and number not in self._BROKEN else Meaning.BROKEN


def _ping_what_was_idle(engine: sa.Engine) -> None:
    """As `pool_pre_ping`, but for a connection that was used a moment ago and whose socket is silent."""

    def used(_: Any, record: Any) -> None:
        record.info["used_s"] = time.monotonic()

    def ping(connection: Any, record: Any, _: Any) -> None:
        is_fresh = time.monotonic() - record.info.get("used_s", -math.inf) < FRESH_S
        try:
            if is_fresh and not has_word(connection.fileno()):
                return
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error

    sa.event.listen(engine, "connect", used)
    sa.event.listen(engine, "checkin", used)
    sa.event.listen(engine, "checkout", ping)


_BACKENDS: dict[str, type[Backend]] = {
    "sqlite": SqliteBackend,
    "postgresql": PostgresBackend,
    "mariadb": MariaDbBackend,
    "mysql": MariaDbBackend,
}


def url_of(text: str, whose: str) -> sa.URL:
    """A user's URL. Raises ConfigError, which quotes none of it: any part may be a password with an odd character."""
    try:
        return sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: what stands in the port's place is no number
        raise ConfigError(
            "url-unreadable",
            f"{whose} URL cannot be read: write dialect://user:password@host:port/database, as "
            "mariadb://shop:secret@db:3306/shop, with odd characters percent-encoded (@ is %40, / is %2F, # is %23)",
        ) from None


def backend_of(url: sa.URL) -> tuple[Backend, sa.URL]:
    """The backend of a URL, and the URL with the driver that it knows. Raises ConfigError for any other."""
    name, _, driver = url.drivername.partition("+")
    kind = _BACKENDS.get(name)
    if kind is None or driver not in ("", kind.driver):
        known = ", ".join(f"{name}+{kind.driver}" for name, kind in _BACKENDS.items())
        raise ConfigError(
            "database-unknown", f"{url.drivername!r} is none of the databases and drivers that onefold knows: {known}"
        )
    return kind(), url.set(drivername=f"{name}+{kind.driver}")


def reason(error: SQLAlchemyError) -> str:
    """What the driver or the server says, on one line."""
    text = str(error.orig if isinstance(error, DBAPIError) and error.orig else error)
    return plain(" ".join(text.split()), SAID_MAX)
