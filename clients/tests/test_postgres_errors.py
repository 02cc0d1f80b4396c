"""Texts of errors that libpq reports without a code."""

from __future__ import annotations

import psycopg

from onefold.clients.postgres.driver_errors import of_connecting

REFUSED = "connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"


def test_a_refused_connection_is_told_in_whole_sentences() -> None:
    error = of_connecting(psycopg.OperationalError(REFUSED), {"dbname": "shop", "host": "db"}, "sink", "")
    assert error.message == (
        "no connection to Postgres, database 'shop' at db:5432: connection refused Is the server running on that host"
        " and accepting TCP/IP connections. Is the server up and within reach?"
    )
    error = of_connecting(psycopg.OperationalError("x"), {"dbname": "shop", "user": "loader"}, "sink", "")
    assert "database 'shop' as 'loader' at local socket:5432: x. Is" in error.message
