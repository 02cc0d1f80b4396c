"""Tests' own ways into a Postgres of theirs: bare URLs for its owner, and roles that need no password."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg

from onefold.testing import ExternalServer, PostgresContainer

# Its owner is a superuser, which another user of this machine could be; the roles that tests make are none.
_ROLES = "host all onefold all scram-sha-256\nhost replication onefold all scram-sha-256\n"
_OPEN = _ROLES + "host all all all trust\n"


def plain_url(server: Any, database: str = "onefold") -> str:
    """Without its password, which `PGPASSFILE` has for as long as the tests run."""
    if isinstance(server, ExternalServer):
        return server.url_of(database)
    address = ":".join(at(server))
    known, line = Path(os.environ["PGPASSFILE"]), f"{address}:*:onefold:{password_of(server)}\n"
    before = known.read_text() if known.exists() else ""
    if line not in before:
        known.touch(mode=0o600)
        known.write_text(before + line)
    return f"postgresql://onefold@{address}/{database}"


def at(server: Any) -> tuple[str, str]:
    """Host and port, as this process reaches it."""
    parts = psycopg.conninfo.conninfo_to_dict(server.url)
    return str(parts["host"]), str(parts["port"])


def password_of(server: Any) -> str:
    if isinstance(server, PostgresContainer):
        return server.password
    return str(server.passfile.read_text().strip().rpartition(":")[2])


def password_at(url: str) -> str:
    """What libpq would take for it; none where it would find none."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    start = f"{parts['host']}:{parts['port']}:"
    known = Path(os.environ["PGPASSFILE"])
    lines = known.read_text().splitlines() if known.exists() else []
    return next((line.rpartition(":")[2] for line in lines if line.startswith(start)), "")


def let_roles_in(server: Any, rules: str = _OPEN) -> None:
    """Somebody else's server lets in whom its owner wants."""
    if isinstance(server, ExternalServer):
        return
    with psycopg.connect(server.url, autocommit=True) as connection:
        (path,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        lines = ", ".join(f"('{line}')" for line in rules.splitlines())
        connection.execute(f"COPY (VALUES {lines}) TO '{path}'".encode())
        connection.execute("SELECT pg_reload_conf()")
