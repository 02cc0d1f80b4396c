"""Whether tables can be made and read through a Thrift2 server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onefold.local.resources import HOST

__all__ = ["serves_tables"]

_ANSWER_MS_MAX = 12_000  # more than Thrift's own retries take, so that no probe is left behind in it


def serves_tables(port: int, settings: Mapping[str, str], cluster_id: str) -> bool:
    """True if master and region server answer, and are those of this cluster and not somebody else's.

    Both are asked: the list of tables can be had seconds before a table can be made or read.
    """
    from thriftpy2.rpc import make_client
    from thriftpy2.thrift import TException

    api = _interface()
    try:
        client = make_client(
            api.THBaseService,
            HOST,
            port,
            timeout=_ANSWER_MS_MAX,
            **_factories(settings),
        )
    except TException:
        return False
    try:
        client.getTableDescriptor(
            api.TTableName(ns=b"hbase", qualifier=b"meta")
        )  # the master refuses it until it is up
        client.getScannerResults(b"hbase:meta", api.TScan(), 1)
        return bool(client.getClusterId() == cluster_id)
    except (TException, OSError):
        return False
    finally:
        client.close()


@cache
def _interface() -> Any:
    import thriftpy2

    return thriftpy2.load(str(Path(__file__).with_suffix(".thrift")), module_name="onefold_hbase_probe_thrift")


def _factories(settings: Mapping[str, str]) -> dict[str, Any]:
    from thriftpy2.protocol import TBinaryProtocolFactory, TCompactProtocolFactory
    from thriftpy2.transport import TBufferedTransportFactory, TFramedTransportFactory

    framed = settings.get("hbase.regionserver.thrift.framed") == "true"
    compact = settings.get("hbase.regionserver.thrift.compact") == "true"
    return {
        "trans_factory": TFramedTransportFactory() if framed else TBufferedTransportFactory(),
        "proto_factory": (TCompactProtocolFactory if compact else TBinaryProtocolFactory)(),
    }
