"""Parts of names that sinks leave in their destinations, which people and other processes read."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from onefold.core.errors import ConfigError

__all__ = ["PART_BYTES_MAX", "part", "table_parts"]

PART_BYTES_MAX = 52


def part(name: str) -> str:
    """`name` without a slash, in at most `PART_BYTES_MAX` bytes; never the same for two names."""
    # "~" is escaped, so that a name that was cut ("...~digest") is never one that was not.
    escaped = quote(name, safe="").replace("~", "%7E")
    if len(escaped) <= PART_BYTES_MAX:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:24]
    return f"{escaped[: PART_BYTES_MAX - 25]}~{digest}"


def table_parts(text: str) -> tuple[str | None, str]:
    """Schema and name of `orders`, `shop.orders` or `"odd.schema"."odd.table"`. Raises ConfigError.

    Case is kept as written, with or without quotes: `Orders` is the table that SQL calls `"Orders"`.
    """
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
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def _unquoted(part: str) -> str:
    if len(part) >= 2 and part[0] == part[-1] == '"':
        return part[1:-1].replace('""', '"')
    return part
