"""What HBase's answers through Thrift mean. This is the one place that knows its words."""

from __future__ import annotations

from typing import Any

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable

__all__ = ["Unanswered", "no_table", "refused"]

_SAID_MAX = 400
_NO_FAMILY = ("NoSuchColumnFamilyException",)
_NO_TABLE = ("TableNotFoundException", "was not found", "NamespaceNotFoundException")
_DENIED = ("AccessDeniedException", "Insufficient permissions", "Read-only mode")
_DISABLED = ("TableNotEnabledException", "is disabled")
_BAD_CELL = ("KeyValue size too large", "cell with size", "Row length", "row is too long")


class Unanswered(Exception):
    """A request was sent, or may have been, and no answer came: it may have taken effect, and may yet do so."""


def refused(error: Any, doing: str) -> OnefoldError:
    """What an exception that a Thrift server answered with means; `doing` says what was tried, where, for people."""
    text = _text(error)
    said = f"{doing}: HBase says {text}"
    if any(word in text for word in _NO_FAMILY):
        return ConfigError(f"{said}. The table lacks that column family: add it (alter), or mend the mapping")
    if any(word in text for word in _DENIED):
        return ConfigError(f"{said}. Grant the Thrift server's user what it lacks, or use a server that takes writes")
    if any(word in text for word in _DISABLED):
        return ConfigError(f"{said}. Enable the table")
    if any(word in text for word in _NO_TABLE):
        return ConfigError(f"{said}. Is the table's name right, with its namespace (namespace:table)? Create it")
    if any(word in text for word in _BAD_CELL):
        return BadRecord(f"{said}. Mend or filter such rows, or raise hbase.client.keyvalue.maxsize")
    return Retriable(f"{said}. Are the region servers up?")


def no_table(name: str, servers: str) -> ConfigError:
    return ConfigError(f"HBase at {servers} has no table {name!r}. Is its namespace (namespace:table) right? Create it")


def _text(error: Any) -> str:
    message = getattr(error, "message", None) or str(error)
    return " ".join(str(message).split())[:_SAID_MAX]
