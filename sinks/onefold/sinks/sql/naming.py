"""Names that both sides of a crash can read: tables, stages and attempts."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

from sqlalchemy.sql import quoted_name

from onefold.core.errors import ConfigError

__all__ = ["ATTEMPT", "RANK", "RESERVED", "ROW", "TIMESTAMP", "TableName", "attempt_number", "exactly", "own_table"]

ATTEMPT, ROW = "onefold_attempt", "onefold_row"  # of a stage
RANK = "onefold_rank"  # of staged rows among those of their key
TIMESTAMP = "onefold_timestamp_ms"  # of remembered deletes: T(N) of the epoch that deleted
RESERVED = frozenset((ATTEMPT, ROW, RANK, TIMESTAMP))  # beside the rows' own columns, so none of those may be one


@dataclass(frozen=True, slots=True)
class TableName:
    """`orders` or `shop.orders`, in the case that the catalogue has; double quotes keep a dot inside a name."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        parts, in_quotes = [""], False
        for character in text:
            if character == '"':
                in_quotes = not in_quotes
            elif character == "." and not in_quotes:
                parts.append("")
            else:
                parts[-1] += character
        if len(parts) > 2 or not all(parts):
            raise ConfigError(f"table={text!r} must be a table's name or schema.table; quote names that hold a dot")
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    def __str__(self) -> str:
        return ".".join(part for part in (self.schema, self.name) if part is not None)


def exactly(name: str) -> quoted_name:
    """A user's name in SQL: always quoted, since no list of reserved words knows all of every version's."""
    return quoted_name(name, quote=True)


def own_table(what: str, pipeline: str, sink: str) -> str:
    """The name of a table (`stage`, `deleted`) that belongs to one sink of one pipeline."""
    return f"onefold_{what}_{hashlib.sha256(repr((pipeline, sink)).encode()).hexdigest()[:32]}"


def attempt_number(attempt: uuid.UUID) -> int:
    """An attempt as a bigint that is never negative: the stage's rows carry it, and 8 bytes are half of 16."""
    return attempt.int & (2**63 - 1)
