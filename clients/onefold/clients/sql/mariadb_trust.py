"""What onefold believes of a MariaDB database: tables of its own, that nobody has put something else in place of.

A table has no owner here, so whoever may CREATE in the database may have been first. A view would run functions as the
pipeline's user, a trigger would change what is written, and another engine has no transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onefold.core.errors import ConfigError

# Transactional, and names that differ in case or accents are different names, whatever the server's defaults are.
_OPTIONS = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}
TABLE_OPTIONS = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE utf8mb4_bin"
MARIADB_OPTIONS: dict[str, Any] = {  # as SQLAlchemy's keywords
    f"{dialect}_{option}": value for dialect in ("mysql", "mariadb") for option, value in _OPTIONS.items()
}

# The names that onefold makes, as a regular expression of MariaDB's.
_OURS = (
    "^onefold_(store|pipelines|epochs|runs|pins|journals|turns|sql_[a-z]+"
    "|(stage|deleted)_[0-9a-f]{32}(_[0-9a-f]{12})?)$"
)
_STRANGE = """
SELECT table_name, CASE WHEN table_type <> 'BASE TABLE' THEN lower(table_type)
    ELSE concat('a table of the engine ', coalesce(engine, 'none')) END
FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name REGEXP %(ours)s
    AND (table_type <> 'BASE TABLE' OR coalesce(engine, '') <> 'InnoDB')
UNION ALL SELECT event_object_table, concat('a table with the trigger ', trigger_name)
FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table REGEXP %(ours)s
"""
_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name REGEXP %(ours)s"
)
_TURNS = f"CREATE TABLE IF NOT EXISTS onefold_turns (name VARCHAR(64) NOT NULL, PRIMARY KEY (name)) {TABLE_OPTIONS}"
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")


def _rows(connection: Any, statement: str) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, {"ours": _OURS})
        return list(cursor.fetchall())


def check_ours(connection: Any) -> None:
    """Raises ConfigError where a name of onefold's is no InnoDB table, or has triggers."""
    for name, what in _rows(connection, _STRANGE):
        raise ConfigError(
            "own-table-foreign",
            f"{name} in this database is {what}, and onefold makes plain InnoDB tables: somebody else was there first,"
            f" and nothing of it was used. Take their rights to CREATE and TRIGGER here, and drop {name}",
        )


def check_rights(connection: Any, table: str, columns: Iterable[str], verbs: Sequence[str] = _ALL) -> None:
    """Raises what the database raises where the user lacks one of these rights on the table, whose name and columns are
    quoted.

    EXPLAIN needs the rights of the statement that it explains, and runs nothing.
    """
    names = list(columns)
    listed, nulls = ", ".join(names), ", ".join("NULL" for _ in names)
    statements = {
        "SELECT": f"SELECT {listed} FROM {table}",
        "INSERT": f"INSERT INTO {table} ({listed}) SELECT {nulls} FROM DUAL WHERE FALSE",
        "UPDATE": f"UPDATE {table} SET {names[0]} = NULL WHERE FALSE",
        "DELETE": f"DELETE FROM {table} WHERE FALSE",
    }
    with connection.cursor() as cursor:
        for verb in verbs:
            cursor.execute(f"EXPLAIN {statements[verb]}")


def tables(connection: Any) -> set[str]:
    """Of the names that onefold makes, those that are there."""
    return {name for (name,) in _rows(connection, _TABLES)}


def making(connection: Any) -> list[str]:
    """The statement that makes the table by which processes take turns; none where it is there."""
    return [] if "onefold_turns" in tables(connection) else [_TURNS]


def take_turn(connection: Any) -> None:
    """One process at a time makes tables, by a row that only those can lock who may write to the database's tables: a
    lock by name (GET_LOCK) is everybody's. On a connection of its own, since DDL commits by itself; to the end of its
    transaction."""
    check_ours(connection)
    with connection.cursor() as cursor:
        for statement in making(connection):
            cursor.execute(statement)
        # INSERT would lock a row that is there.
        cursor.execute(
            "INSERT IGNORE INTO onefold_turns SELECT 'tables' FROM DUAL"
            " WHERE NOT EXISTS (SELECT 1 FROM onefold_turns WHERE name = 'tables')"
        )
        connection.commit()
        connection.begin()
        cursor.execute("SELECT name FROM onefold_turns WHERE name = 'tables' FOR UPDATE")
