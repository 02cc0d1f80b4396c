"""What an HBase sink's guarantee rests on, as HBase and its Thrift servers have it now. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.clients.hbase import table_admin
from onefold.clients.hbase.client_settings import Address, HBaseSettings
from onefold.clients.hbase.limits import limits, misfits
from onefold.clients.hbase.table_admin import ColumnFamily
from onefold.core.findings import Finding, Level
from onefold.sinks.hbase.sink_plan import HBaseSinkSettings


def examine(settings: HBaseSinkSettings) -> Iterator[Finding]:
    hbase, declared = settings.hbase, settings.declared
    shape = table_admin.describe(hbase, declared.table)
    for family in () if shape is None else shape.families:
        if family.ttl_s is not None and family.name in declared.families:
            yield _forgets(declared.table, family, settings.mode.name)
    for address in hbase.addresses():
        yield from _server(hbase, address)


def _forgets(table: str, family: ColumnFamily, mode: str) -> Finding:
    what = {
        "row_key": "an epoch that stays open for longer is lost in part",
        "rolling": "an epoch that stays open for longer is lost in part, and a row that was forgotten begins anew",
        "incremental": "a message that is repeated later is applied again",
    }[mode]
    says = f"family {family.name.decode(errors='replace')!r} of {table!r} forgets cells after {family.ttl_s} s (TTL)"
    return Finding(Level.CAUTION, f"{says}: {what}")


def _server(hbase: HBaseSettings, address: Address) -> Iterator[Finding]:
    seen, where = limits(address, hbase.info_port), f"the HBase Thrift server at {address}"
    if seen is None:
        yield Finding(
            Level.CAUTION,
            f"{where} shows no settings on port {hbase.info_port} (hbase.thrift.info.port):"
            " see yourself that its hbase.client.operation.timeout and hbase.client.meta.operation.timeout are a few"
            " seconds. It goes on with a request for as long, also when its client has died",
        )
        return
    found = list(misfits(seen, hbase))
    yield from (Finding(Level.CAUTION, says) for says in found)
    if not found:
        yield Finding(
            Level.FINE,
            f"{where} gives a request up after {seen.operation_s:g} s: what a dead driver's"
            " tasks have asked for may land until then",
        )
