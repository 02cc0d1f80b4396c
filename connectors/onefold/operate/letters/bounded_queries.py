"""Reads tables of dead letters within a bound: they may be large, and are in the database that the sink writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.sessions import Connection
from onefold.core import Retriable
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.sink_options import PostgresSinkConfig

__all__ = ["WITHIN_S", "reading"]

WITHIN_S = 5.0  # of one statement


@contextmanager
def reading(settings: PostgresSinkConfig, table: TargetName, index: str) -> Iterator[Connection]:
    """A transaction that reads this table. `index` names the columns that let it read no more than it needs.

    Raises Retriable where a statement takes longer than `WITHIN_S`: the server has ended it then.
    """
    with pool.borrow(settings.conninfo("dead letters"), f"reading {table}") as connection:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL statement_timeout = {int(WITHIN_S * 1000)}".encode())
                yield connection
        except psycopg.errors.QueryCanceled as error:
            raise Retriable(
                "letters-slow",
                f"what is wanted of table {table} was not found within {WITHIN_S:g} s, and the query was ended. With an"
                f" index it is found at once: CREATE INDEX ON {table.sql} ({index}). Where there is one, somebody else"
                " locks the table: ask again later",
            ) from error
