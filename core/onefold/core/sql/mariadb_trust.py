"""What onefold believes of a MariaDB database: tables of its own, that nobody has put something else in place of.

A table has no owner here, so whoever may CREATE in the database may have been first. A view would run functions as the
pipeline's user, a trigger would change what is written, and another engine has no transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from onefold.core.errors import ConfigError
from onefold.core.sql.creating import creating

__all__ = ["MARIADB_OPTIONS", "check_ours", "check_rights", "making", "turn"]

# Transactional, and names that differ in case or accents are different names, whatever the server's defaults are.
MARIADB_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}

# The names that onefold makes, as a regular expression of MariaDB's.
_OURS = (
    "^onefold_(store|pipelines|epochs|runs|pins|journals|turns|sql_[a-z]+"
    "|(stage|deleted)_[0-9a-f]{32}(_[0-9a-f]{12})?)$"
)
_STRANGE = sa.text(
    "SELECT table_name, CASE WHEN table_type <> 'BASE TABLE' THEN lower(table_type)"
    " ELSE concat('a table of the engine ', coalesce(engine, 'none')) END"
    " FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name REGEXP :ours"
    " AND (table_type <> 'BASE TABLE' OR coalesce(engine, '') <> 'InnoDB')"
    " UNION ALL SELECT event_object_table, concat('a table with the trigger ', trigger_name)"
    " FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table REGEXP :ours"
)
_turns = sa.Table("onefold_turns", sa.MetaData(), sa.Column("name", sa.String(64), primary_key=True), **MARIADB_OPTIONS)
_NAME = "tables"
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")


def check_ours(connection: sa.Connection) -> None:
    """Raises ConfigError where a name of onefold's is no InnoDB table, or has triggers."""
    found = connection.execute(_STRANGE, {"ours": _OURS}).first()
    if found is not None:
        name, what = found
        raise ConfigError(
            "own-table-foreign",
            f"{name} in this database is {what}, and onefold makes plain InnoDB tables: somebody else was there first,"
            f" and nothing of it was used. Take their rights to CREATE and TRIGGER here, and drop {name}",
        )


def check_rights(connection: sa.Connection, table: sa.TableClause, verbs: Sequence[str] = _ALL) -> None:
    """Raises what the database raises where the user lacks one of these rights on the table.

    EXPLAIN needs the rights of the statement that it explains, and runs nothing.
    """
    preparer = connection.dialect.identifier_preparer
    name, columns = preparer.format_table(table), [preparer.quote(column.name) for column in table.columns]
    listed, nulls = ", ".join(columns), ", ".join("NULL" for _ in columns)
    statements = {
        "SELECT": f"SELECT {listed} FROM {name}",
        "INSERT": f"INSERT INTO {name} ({listed}) SELECT {nulls} FROM DUAL WHERE FALSE",
        "UPDATE": f"UPDATE {name} SET {columns[0]} = NULL WHERE FALSE",
        "DELETE": f"DELETE FROM {name} WHERE FALSE",
    }
    for verb in verbs:
        connection.exec_driver_sql(f"EXPLAIN {statements[verb]}")


def making(connection: sa.Connection) -> list[str]:
    """The statement that makes the table by which processes take turns; none where it is there."""
    is_there = sa.inspect(connection).has_table(_turns.name)
    return [] if is_there else creating(connection.dialect, [_turns])


@contextmanager
def turn(engine: sa.Engine, let_idle: Callable[[sa.Connection], None]) -> Iterator[None]:
    """One process at a time makes tables, by a row that only those can lock who may write to the database's tables: a
    lock by name (GET_LOCK) is everybody's. On a connection of its own, since DDL commits by itself."""
    row = sa.select(_turns.c.name).where(_turns.c.name == _NAME)
    with engine.connect() as connection:
        check_ours(connection)
        if not sa.inspect(connection).has_table(_turns.name):
            connection.execute(sa.schema.CreateTable(_turns, if_not_exists=True))
        connection.execute(_turns.insert().prefix_with("IGNORE").from_select(["name"], _absent(row)))
        connection.commit()
        let_idle(connection)
        connection.execute(row.with_for_update())
        yield
        connection.rollback()


def _absent(row: sa.Select[Any]) -> sa.Select[Any]:
    """The row's values, where it is not there: INSERT would lock one that is."""
    return sa.select(sa.literal(_NAME)).where(~sa.exists(row))
