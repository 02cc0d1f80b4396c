"""Turns HBase's answers through Thrift into onefold's errors. Only this module knows HBase's words."""

from __future__ import annotations

import re
from typing import Any

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, OutOfResources, Retriable
from onefold.core.values.plain import SAID_MAX, plain

_SAID_MAX = 300
_DENIED = ("AccessDeniedException", "Insufficient permissions", "Read-only mode")
_FAILED = "Internal error processing"  # an exception of the Thrift server's own: it says no more
_CELL_BYTES_USUAL = 10 << 20
# What HBase's own client does not try again, as DoNotRetryIOException, though it passes: a region that no server has
# taken up yet, a server that is starting, stopping or overloaded, scanners that these forgot, and ZooKeeper away.
_PASSES = (
    "Zookeeper ",
    "No server address listed in",
    "Unable to find region for",
    "NoServerForRegionException",
    "Busy Server!",
    "peration timeout",
    "UnknownScannerException",
    "OutOfOrderScannerNextException",
    "ScannerResetException",
    "LeaseException",
    "MasterStoppedException",
)


def refused(error: Any, table: str, servers: str, doing: str, row_bytes_max: int = 0) -> OnefoldError:
    """What an exception that a Thrift server answered with means; `doing` says what was tried, for people, and
    `row_bytes_max` how long the longest row of the request was."""
    message = getattr(error, "message", str(error))
    text = plain(" ".join(str(message or "nothing").split()), SAID_MAX)
    said = f"table {table!r} of HBase at {servers}, {doing}: HBase says {_short(text)}"
    if text.startswith("Invalid method name"):
        return ConfigError(
            "hbase-not-thrift2", f"{said}. It is no Thrift2 server: start one (hbase thrift2 start), or mend servers"
        )
    if "NoSuchColumnFamilyException" in text:
        return ConfigError(
            "hbase-column-family-missing",
            f"{said}. Add the column family (alter '{table}', 'FAMILY'), or mend the mapping",
        )
    if any(word in text for word in _DENIED):
        return ConfigError(
            "hbase-access-denied",
            f"{said}. Grant the Thrift server's user what it lacks, or use a server that takes writes",
        )
    if "NamespaceNotFoundException" in text:
        return ConfigError(
            "hbase-namespace-missing", f"{said}. Create the namespace (create_namespace '{table.rpartition(':')[0]}')"
        )
    if _is_its_name(text, table) or "TableNotFoundException" in text:
        return no_table(table, servers)
    if "exceeds limit of" in text or (text.startswith(_FAILED) and row_bytes_max > _CELL_BYTES_USUAL):
        return BadRecord(
            "cell-too-large",
            f"{said}. A row of it has {row_bytes_max:,} bytes, and a cell at most hbase.client.keyvalue.maxsize of the "
            "Thrift server and hbase.server.keyvalue.maxsize of HBase (10 MiB). Mend or filter it, or raise both",
        )
    is_final = getattr(error, "canRetry", None) is False or "DoNotRetryIOException" in text
    if is_final and message and not any(word in text for word in _PASSES):
        return ConfigError("hbase-request-refused", f"{said}. HBase will not take it later either")
    if text.startswith(_FAILED):
        return Retriable("hbase-write-failed", f"{said}. The Thrift server's log says why")
    return OutOfResources(
        "hbase-not-serving", f"{said}. Is the table enabled, are the region servers up, and not overloaded?"
    )


def no_table(table: str, servers: str) -> ConfigError:
    return ConfigError(
        "hbase-table-missing",
        f"HBase at {servers} has no table {table!r}: create it, or mend its name (namespace:table)",
    )


def _is_its_name(text: str, table: str) -> bool:
    """Whether the text is only the table's name: for some actions HBase says no more of a missing table."""
    return text == table or re.search(rf"actions?: {re.escape(table)}: \d+ times?,", text) is not None


def _short(text: str) -> str:
    """The text without the server's stack and without a table's attributes."""
    return re.split(r" at org\.|, \{TABLE_ATTRIBUTES|, \{NAME =>", text)[0][:_SAID_MAX]
