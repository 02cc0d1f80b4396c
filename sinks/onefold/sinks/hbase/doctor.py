"""What an HBase sink's guarantee rests on, as HBase and its Thrift servers have it now. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onefold.clients.hbase import tables
from onefold.clients.hbase.limits import limits, misfits
from onefold.clients.hbase.settings import Address, HBaseSettings
from onefold.clients.hbase.tables import Family, TableShape
from onefold.core.findings import Finding, Level
from onefold.core.invariants import NoLoss
from onefold.sinks.hbase.epoch_log import LEDGER_FAMILY
from onefold.sinks.hbase.plan import Settings

__all__ = ["examine"]


def examine(settings: Settings) -> Iterator[Finding]:
    hbase, declared = settings.hbase, settings.declared
    shape = tables.describe(hbase, declared.table)
    yield from _table(hbase, declared.table, shape, [Family(name) for name in declared.families])
    for family in () if shape is None else shape.families:
        if family.ttl_s is not None and family.name in declared.families:
            yield _forgets(declared.table, family, settings.mode.name)
    ledger = tables.describe(hbase, settings.ledger)
    yield from _table(hbase, settings.ledger, ledger, [Family(LEDGER_FAMILY)])
    if ledger is not None and any(family.ttl_s is not None for family in ledger.families):
        says = f"the table {settings.ledger!r} has a TTL, and forgets where its pipelines stand: alter it"
        yield Finding(Level.PROBLEM, says)
    for address in hbase.addresses():
        yield from _server(hbase, address)


def _table(hbase: HBaseSettings, name: str, shape: TableShape | None, families: Sequence[Family]) -> Iterator[Finding]:
    if shape is None:
        yield Finding(Level.FINE, f"the table {name!r} is made by the first start")
        return
    found = list(tables.faults(hbase, shape, families))
    for says in found:
        yield Finding(Level.PROBLEM, says, (NoLoss.name,) if "DURABILITY" in says else ())
    if not found:
        yield Finding(Level.FINE, f"the table {name!r} has what the sink needs")


def _forgets(table: str, family: Family, mode: str) -> Finding:
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
