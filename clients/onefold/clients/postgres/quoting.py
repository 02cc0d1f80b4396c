"""Names and texts as parts of SQL, quoted by psycopg."""

from __future__ import annotations

from psycopg import sql

from onefold.core.checks import require
from onefold.core.errors import ConfigError

NAME_BYTES_MAX = 63


def identifier(name: str) -> str:
    """`name` as a quoted SQL identifier. Raises ConfigError for what Postgres would cut off, or cannot hold."""
    if not name or "\0" in name:
        raise ConfigError("name-not-usable", f"{name!r} cannot be the name of a table or column in Postgres")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(
            "name-not-usable",
            f"{name!r} has {len(name.encode())} bytes, and Postgres cuts names after {NAME_BYTES_MAX}: shorten it",
        )
    return quoted(name)


def quoted(name: str) -> str:
    """A name that the server has."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as an SQL string."""
    require("\0" not in text, "a NUL in text that is quoted for SQL")
    return sql.Literal(text).as_string()


def with_parameters(quoted: str) -> str:
    """What is quoted, for a statement that takes parameters: psycopg would read a single % as one of them."""
    return quoted.replace("%", "%%")
