"""What a Thrift2 server says: whether tables can be made and read through it, and which regions a table has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from onefold.core.errors import OnefoldError
from onefold.local.server_errors import LocalServerError

_ANSWER_S_MAX = 12.0  # more than Thrift's own retries take, so that no probe is left behind in it
_REGIONS_MAX = 10_000


def serves_tables(address: str, settings: Mapping[str, str], cluster_id: str | None) -> bool:
    """True if master and region server answer, and are those of this cluster and not somebody else's (None: any).

    Both are asked: the list of tables can be had seconds before a table can be made or read.
    """
    from onefold.clients.answers import Unanswered
    from onefold.clients.hbase.compact_protocol import thrift

    try:
        with _asking(address, settings) as ask:
            meta = thrift.TTableName(ns=b"hbase", qualifier=b"meta")
            answers = (
                ask("getTableDescriptor", table=meta),  # the master refuses it until it is up
                ask("getScannerResults", table=b"hbase:meta", tscan=thrift.TScan(), numRows=1),
            )
            is_up = not any(isinstance(answer, Exception) for answer in answers)
            return is_up and (cluster_id is None or bool(ask("getClusterId") == cluster_id))
    except (OnefoldError, Unanswered):
        return False


def regions_of(address: str, settings: Mapping[str, str], table: str) -> list[bytes]:
    """The names of a table's regions, as HBase's own table of regions has them. Raises LocalServerError without such a
    table."""
    from onefold.clients.hbase.compact_protocol import thrift

    scan = thrift.TScan(columns=[thrift.TColumn(b"info", b"regioninfo")])
    with _asking(address, settings) as ask:
        found = ask("getScannerResults", table=b"hbase:meta", tscan=scan, numRows=_REGIONS_MAX)
    if isinstance(found, Exception):
        raise LocalServerError("hbase-admin-failed", f"hbase:meta cannot be read at {address}: {found}")
    names = [row.row for row in found if row.row.startswith(table.removeprefix("default:").encode() + b",")]
    if not names:
        raise LocalServerError("local-table-missing", f"there is no table {table} in the HBase at {address}")
    return names


@contextmanager
def _asking(address: str, settings: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
    """A function that asks the server, and returns what it answers, be it an exception."""
    from onefold.clients.hbase.client_settings import HBaseSettings
    from onefold.clients.hbase.compact_protocol import arguments
    from onefold.clients.hbase.thrift_connection import ThriftConnection

    framed = settings.get("hbase.regionserver.thrift.framed") == "true"
    compact = settings.get("hbase.regionserver.thrift.compact") == "true"
    server = HBaseSettings(
        address,
        transport="framed" if framed else "buffered",
        protocol="compact" if compact else "binary",
        timeout_s=_ANSWER_S_MAX,
    )

    def ask(call: str, **given: Any) -> Any:
        (answer,) = connection.ask_all(call, [arguments(call, server.protocol, **given)])
        return answer

    with closing(ThriftConnection(server.addresses()[0], server)) as connection:
        yield ask
