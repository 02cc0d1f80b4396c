"""MariaDB, and MySQL where it behaves the same, through PyMySQL."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from onefold.clients.sql import mariadb_trust
from onefold.clients.sql.database_backend import IDLE_S_MAX, Answer, Backend, Meaning, Statement, reason
from onefold.clients.sql.url import DatabaseUrl
from onefold.core.checks import present
from onefold.core.errors import ConfigError

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
_NUMBERS = ("connect_timeout", "read_timeout", "write_timeout", "client_flag")
_SWITCHES = ("ssl_check_hostname", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity", "use_unicode")
_OFF = ("false", "no", "off", "0")
_TLS = ("ssl_ca", "ssl_key", "ssl_cert", "ssl_capath", "ssl_cipher", "ssl_check_hostname")
_TEXT = re.compile(r"\bTEXT\b")  # ends at 64 KB there


class MariaDbBackend(Backend):
    """DDL commits by itself here, so a lock outside the transaction keeps two that create tables apart."""

    name, tells_rights = "MariaDB", False
    connection_type = pymysql.Connection
    error, integrity_error = pymysql.Error, pymysql.IntegrityError

    def __init__(self, url: DatabaseUrl, *uses: Any, **limits: Any) -> None:
        super().__init__(url, *uses, **limits)
        if "local_infile" in url.query:
            raise ConfigError(
                "option-not-allowed",
                "local_infile in a URL lets the server read any file of this machine: leave it out",
            )
        self._options = _options(url)
        # A driver that was frozen or cut off in the middle of a transaction must not keep the pipeline's row locked.
        self._idle_s = max(1, int(self.lock_timeout_s / 2))

    def connect(self) -> pymysql.Connection[Any]:
        connection = pymysql.connect(**self._options)
        try:
            self._set(connection)
        except pymysql.Error:
            connection.close()
            raise
        return connection

    def _set(self, connection: pymysql.Connection[Any]) -> None:
        wait_s = max(1, math.ceil(self.lock_timeout_s))
        settings = {
            "time_zone": "'+00:00'",
            "innodb_lock_wait_timeout": wait_s,
            "lock_wait_timeout": wait_s,
            "wait_timeout": f"GREATEST(@@wait_timeout, {IDLE_S_MAX})",  # it also counts inside transactions
        }
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            if self.reads_only:
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
            cursor.execute("SET SESSION " + ", ".join(f"{name}={value}" for name, value in settings.items()))
            cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
            (flush,) = cursor.fetchone() or (1,)
        connection.rollback()
        if "read_timeout" not in self.url.query:
            connection._read_timeout = None  # type: ignore[attr-defined]  # what comes after the handshake: a merge
        if flush != 1:
            warnings.warn(
                f"innodb_flush_log_at_trx_commit is {flush} on {self.url.host}: a crash there may take back what was "
                "acknowledged, and exactly-once with it. SET GLOBAL innodb_flush_log_at_trx_commit = 1",
                RuntimeWarning,
                stacklevel=2,
            )

    def is_alive(self, connection: pymysql.Connection[Any]) -> bool:
        try:
            connection.ping(reconnect=False)
        except pymysql.Error:
            return False
        return True

    def begin(self, connection: pymysql.Connection[Any], first: Sequence[Statement]) -> list[Answer]:
        limit_s = f"{self.lock_timeout_s:g}" if self.reads_only else "0"  # the server's would end a merge
        self._limit(connection, f"idle_transaction_timeout = {self._idle_s}, max_statement_time = {limit_s}")
        connection.begin()
        return self.run(connection, first)

    @staticmethod
    def _limit(connection: pymysql.Connection[Any], settings: str) -> None:
        version: str = connection.get_server_info()  # type: ignore[no-untyped-call]
        if "mariadb" in version.lower():  # MySQL has no such limits
            connection.query(f"SET SESSION {settings}")

    def let_idle(self, connection: pymysql.Connection[Any]) -> None:
        self._limit(connection, f"idle_transaction_timeout = {IDLE_S_MAX}")  # the session's next one sets it back

    def _own_text(self, statement: str) -> str:
        text = statement.replace('"', "`")
        if statement.startswith("CREATE TABLE"):
            return f"{_TEXT.sub('LONGTEXT', text)} {mariadb_trust.TABLE_OPTIONS}"
        return text

    def tables(self, connection: pymysql.Connection[Any]) -> set[str]:
        return mariadb_trust.tables(connection)

    @contextmanager
    def alone(self) -> Iterator[None]:
        connection = self.take()
        try:
            connection.begin()
            mariadb_trust.take_turn(connection)
            self.let_idle(connection)
            yield
            connection.rollback()
        except BaseException:
            self.end(connection)
            raise
        self.give_back(connection)

    def making(self, connection: pymysql.Connection[Any] | None) -> list[str]:
        return mariadb_trust.making(present(connection, "a MariaDB database is there before it is asked"))

    def check_ours(
        self, connection: pymysql.Connection[Any], names: Sequence[str] = (), *, to_look: bool = True
    ) -> None:
        del names, to_look
        mariadb_trust.check_ours(connection)

    def check_may_work(self, connection: pymysql.Connection[Any], tables: Iterable[tuple[str, Iterable[str]]]) -> None:
        for table, columns in tables:
            mariadb_trust.check_rights(connection, table, [f"`{column}`" for column in columns])

    def meaning(self, error: Exception) -> Meaning:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if number in _BAD_ROW:
            return Meaning.BAD_ROW
        if number in _HOPELESS or "CERTIFICATE_VERIFY_FAILED" in reason(error):
            return Meaning.HOPELESS
        if number in _EXHAUSTED:
            return Meaning.EXHAUSTED
        is_the_servers = _PASSING_FROM <= number < _CLIENT_FROM or number > _CLIENT_FROM + 1000
        return Meaning.PASSING if is_the_servers and number not in _BROKEN else Meaning.BROKEN


def _options(url: DatabaseUrl) -> dict[str, Any]:
    """PyMySQL's. Its own limit on connecting ends before the server's greeting. MySQL's default mode lets a value that
    doesn't fit be bent. Rows that an UPDATE finds count, also where it changes nothing."""
    options: dict[str, Any] = {"connect_timeout": "10", **url.query}
    options |= {name: int(options[name]) for name in _NUMBERS if name in options}
    options |= {name: options[name].lower() not in _OFF for name in _SWITCHES if name in options}
    options.setdefault("read_timeout", options["connect_timeout"])
    tls = {name.removeprefix("ssl_"): options.pop(name) for name in _TLS if name in options}
    named = {"host": url.host, "port": url.port, "user": url.user, "password": url.password, "database": url.database}
    return {
        **{name: value for name, value in named.items() if value},
        **options,
        **({"ssl": tls} if tls else {}),
        "charset": "utf8mb4",
        "sql_mode": _SQL_MODE,
        "client_flag": options.get("client_flag", 0) | CLIENT.FOUND_ROWS,
    }
