"""Tests' own ways into a local Postgres: bare URLs for its owner, and roles that need no password."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from onefold.local import PostgresServer

# Its owner is a superuser, which another user of this machine could be; the roles that tests make are none.
_ROLES = "host all onefold 127.0.0.1/32 scram-sha-256\nhost replication onefold 127.0.0.1/32 scram-sha-256\n"
_OPEN = _ROLES + "host all all 127.0.0.1/32 trust\n"


def plain_url(server: PostgresServer, database: str = "onefold") -> str:
    """Without the file that has its password, which `PGPASSFILE` has for as long as the tests run."""
    if not hasattr(server, "passfile"):  # somebody else's, whose URL is what it is
        return f"{server.url.rpartition('/')[0]}/{database}"
    known, lines = Path(os.environ["PGPASSFILE"]), server.passfile.read_text().replace(":*:", f":{server.port}:", 1)
    before = known.read_text() if known.exists() else ""
    if lines not in before:
        known.touch(mode=0o600)
        known.write_text(before + lines)
    return f"postgresql://onefold@127.0.0.1:{server.port}/{database}"


def password_of(server: PostgresServer) -> str:
    return server.passfile.read_text().strip().rpartition(":")[2]


def password_at(url: str) -> str:
    """What libpq would take for it; none where it would find none."""
    port = f":{psycopg.conninfo.conninfo_to_dict(url)['port']}:"
    known = Path(os.environ["PGPASSFILE"])
    lines = known.read_text().splitlines() if known.exists() else []
    return next((line.rpartition(":")[2] for line in lines if port in line), "")


def let_roles_in(server: PostgresServer, rules: str = _OPEN) -> None:
    (server.home / "data" / "pg_hba.conf").write_text(rules)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
