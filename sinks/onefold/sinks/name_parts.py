"""Names of tables, and parts of names that sinks leave in their destinations, which people and other processes read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from onefold.core.errors import ConfigError

PART_BYTES_MAX = 52


def part(name: str) -> str:
    """`name` without a slash, in at most `PART_BYTES_MAX` bytes; never the same for two names."""
    # "~" is escaped, so that a name that was cut ("...~digest") is never one that was not.
    escaped = quote(name, safe="").replace("~", "%7E")
    if len(escaped) <= PART_BYTES_MAX:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:24]
    return f"{escaped[: PART_BYTES_MAX - 25]}~{digest}"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name as the user gave it: `orders`, `shop.orders`, `"odd.schema"."odd.table"`.

    Case is kept as written, with or without quotes: `Orders` is the table that SQL calls `"Orders"`.
    """

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError."""
        parts, current, in_quotes = [], "", False
        for character in text:
            if character == '"':
                in_quotes = not in_quotes
            if character == "." and not in_quotes:
                parts.append(current)
                current = ""
            else:
                current += character
        parts = [_unquoted(part) for part in (*parts, current)]
        if len(parts) > 2 or not all(parts):
            raise ConfigError(
                "option-value", f"table={text!r} must be a table's name or schema.table; quote names that hold a dot"
            )
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    def __str__(self) -> str:
        """As a user would give it: `parse` reads it back."""
        return ".".join(_quoted_if_odd(part) for part in (self.schema, self.name) if part is not None)


def _unquoted(part: str) -> str:
    if len(part) >= 2 and part[0] == part[-1] == '"':
        return part[1:-1].replace('""', '"')
    return part


def _quoted_if_odd(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part
