"""Parts of names that sinks leave in their destinations, which people and other processes read."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

__all__ = ["PART_BYTES_MAX", "part"]

PART_BYTES_MAX = 52


def part(name: str) -> str:
    """`name` without a slash, in at most `PART_BYTES_MAX` bytes; never the same for two names."""
    # "~" is escaped, so that a name that was cut ("...~digest") is never one that was not.
    escaped = quote(name, safe="").replace("~", "%7E")
    if len(escaped) <= PART_BYTES_MAX:
        return escaped
    digest = hashlib.sha256(name.encode()).hexdigest()[:24]
    return f"{escaped[: PART_BYTES_MAX - 25]}~{digest}"
