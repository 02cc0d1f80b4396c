"""Names that both sides of a crash can read: tables, stages and attempts."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

from sqlalchemy.sql import quoted_name

from onefold.core.errors import ConfigError
from onefold.sinks.name_parts import TableName

ATTEMPT, ROW, DELETED = "onefold_attempt", "onefold_row", "onefold_deleted"  # of a stage
RANK = "onefold_rank"  # of staged rows among those of their key
TIMESTAMP = "onefold_timestamp_ms"  # of remembered deletes: T(N) of the epoch that deleted
RESERVED = frozenset(
    (ATTEMPT, ROW, DELETED, RANK, TIMESTAMP)
)  # beside the rows' own columns, so none of those may be one


_OURS = re.compile(
    r"onefold_(store|pipelines|epochs|runs|pins|turns|locks|sql_[a-z]+|(stage|deleted)_[0-9a-f]{32}(_[0-9a-f]{12})?)",
    re.IGNORECASE,
)


def check_users(table: TableName) -> None:
    """Raise ConfigError for one of onefold's own tables."""
    if _OURS.fullmatch(table.name) or unusable([table.name]):
        raise ConfigError(
            "option-value", f"table={str(table)!r} is one of onefold's own tables, or no name: name a table of yours"
        )


def unusable(names: Iterable[str]) -> list[str]:
    """Of names, which records may have chosen: those that a database reads as another, or not at all."""
    return [name for name in names if not name.strip() or any(unicodedata.category(c) == "Cc" for c in name)]


def exactly(name: str) -> quoted_name:
    """A user's name in SQL: always quoted, since no list of reserved words knows all of every version's."""
    return quoted_name(name, quote=True)


def own_table(what: str, pipeline: str, sink: str) -> str:
    """The name of a table of one sink of one pipeline (`deleted`), or what its stages' names begin with (`stage`)."""
    return f"onefold_{what}_{hashlib.sha256(repr((pipeline, sink)).encode()).hexdigest()[:32]}"
