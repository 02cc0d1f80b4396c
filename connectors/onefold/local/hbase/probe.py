"""Whether tables can be made and read through a Thrift2 server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from onefold.core.errors import OnefoldError
from onefold.local.resources import HOST

__all__ = ["serves_tables"]

_ANSWER_S_MAX = 12.0  # more than Thrift's own retries take, so that no probe is left behind in it


def serves_tables(port: int, settings: Mapping[str, str], cluster_id: str) -> bool:
    """True if master and region server answer, and are those of this cluster and not somebody else's.

    Both are asked: the list of tables can be had seconds before a table can be made or read.
    """
    from onefold.clients.hbase.compact import arguments
    from onefold.clients.hbase.connection import Connection
    from onefold.clients.hbase.errors import Unanswered
    from onefold.clients.hbase.idl import thrift
    from onefold.clients.hbase.settings import HBaseSettings

    framed = settings.get("hbase.regionserver.thrift.framed") == "true"
    compact = settings.get("hbase.regionserver.thrift.compact") == "true"
    server = HBaseSettings(
        f"{HOST}:{port}",
        transport="framed" if framed else "buffered",
        protocol="compact" if compact else "binary",
        timeout_s=_ANSWER_S_MAX,
    )

    def ask(call: str, **given: Any) -> Any:
        (answer,) = connection.ask_all(call, [arguments(call, server.protocol, **given)])
        return answer

    try:
        with closing(Connection(server.addresses()[0], server)) as connection:
            meta = thrift.TTableName(ns=b"hbase", qualifier=b"meta")
            answers = (
                ask("getTableDescriptor", table=meta),  # the master refuses it until it is up
                ask("getScannerResults", table=b"hbase:meta", tscan=thrift.TScan(), numRows=1),
            )
            is_up = not any(isinstance(answer, Exception) for answer in answers)
            return is_up and bool(ask("getClusterId") == cluster_id)
    except (OnefoldError, Unanswered):
        return False
