"""Creates and describes tables. Each request is sent once: the caller repeats it while servers are down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from onefold.clients.answers import as_it_is
from onefold.clients.hbase import compact_protocol
from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.compact_protocol import thrift
from onefold.clients.hbase.pool import pool
from onefold.clients.hbase.thrift_errors import no_table, refused
from onefold.core.errors import ConfigError, OnefoldError
from onefold.core.findings import Checks, Finding, Level, passed
from onefold.core.invariants import NoLoss

T = TypeVar("T")
_NAME = re.compile(r"(?:\w+:)?\w[\w.-]*", re.ASCII)
_FOREVER_S = 2**31 - 1
_LOSES_ACKNOWLEDGED = ("SKIP_WAL", "ASYNC_WAL")


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """`ttl_s` None: cells stay for ever. With a TTL, a cell is gone that long after its *timestamp*."""

    name: bytes
    versions_max: int = 1
    ttl_s: int | None = None


@dataclass(frozen=True, slots=True)
class TableShape:
    name: str
    families: tuple[ColumnFamily, ...]
    durability: str = "USE_DEFAULT"

    def family(self, name: bytes) -> ColumnFamily | None:
        return next((family for family in self.families if family.name == name), None)


def describe(settings: HBaseSettings, name: str) -> TableShape | None:
    """The table as it is; None if there is none."""
    if not _ask(settings, name, "tableExists", bool, tableName=_named(name)):
        return None

    def read(found: Any) -> TableShape:
        families = tuple(
            ColumnFamily(
                bytes(family.name),
                1 if family.maxVersions is None else int(family.maxVersions),
                None if family.timeToLive in (None, _FOREVER_S) else int(family.timeToLive),
            )
            for family in found.columns or ()
        )
        return TableShape(name, families, thrift.TDurability._VALUES_TO_NAMES.get(found.durability, "USE_DEFAULT"))

    return _ask(settings, name, "getTableDescriptor", read, table=_named(name))


def create(
    settings: HBaseSettings, name: str, families: Sequence[ColumnFamily], split_keys: Sequence[bytes] = ()
) -> None:
    """Creates a table; an existing one is left as it is. `split_keys` are where the second and later regions begin."""
    columns = [
        thrift.TColumnFamilyDescriptor(name=f.name, maxVersions=f.versions_max, timeToLive=f.ttl_s or _FOREVER_S)
        for f in families
    ]
    described = thrift.TTableDescriptor(_named(name), columns)
    try:
        _ask(settings, name, "createTable", as_it_is, desc=described, splitKeys=sorted(split_keys) or None)
    except OnefoldError:
        if describe(settings, name) is None:  # else it is there: another process made it, or the answer was lost
            raise


def drop(settings: HBaseSettings, name: str) -> None:
    """Disable and delete, for tests and benchmarks."""
    _disable(settings, name)
    _ask(settings, name, "deleteTable", as_it_is, tableName=_named(name))


def truncate(settings: HBaseSettings, name: str) -> None:
    """Make the table anew, with the same families and regions."""
    _disable(settings, name)
    _ask(settings, name, "truncateTable", as_it_is, tableName=_named(name), preserveSplits=True)


def _disable(settings: HBaseSettings, name: str) -> None:
    if not _ask(settings, name, "isTableDisabled", bool, tableName=_named(name)):
        _ask(settings, name, "disableTable", as_it_is, tableName=_named(name))


def ensure(
    settings: HBaseSettings, name: str, families: Sequence[ColumnFamily], split_keys: Sequence[bytes] = ()
) -> TableShape:
    """The table, made if it isn't there. Raises ConfigError where it is disabled, lacks a family, keeps fewer versions
    than asked for, or acknowledges what it has not written. A TTL is for the caller to judge, in what is returned."""
    shape = passed(checks(settings, name, families, split_keys))
    if shape is None:
        create(settings, name, families, split_keys)
        shape = passed(checks(settings, name, families))
        if shape is None:
            raise no_table(name, settings.servers)
    return shape


def checks(
    settings: HBaseSettings, name: str, families: Sequence[ColumnFamily], split_keys: Sequence[bytes] = ()
) -> Checks[TableShape | None]:
    """Why a table cannot keep rows of these families durably; None where there is no table, and it can be made. Raises
    what asking HBase raises."""
    shape = describe(settings, name)
    if shape is None:
        if namespace := name.rpartition(":")[0]:
            _ask(settings, name, "getNamespaceDescriptor", as_it_is, name=namespace)
        says = f"the table {name!r} is made by the first start"
        yield Finding.making(says, f"HBase at {settings.servers}", [_creating(name, families, split_keys)])
        return None
    faults = list(_faults(settings, shape, families))
    for fault in faults:
        breaks = (NoLoss.name,) if "DURABILITY" in fault else ()
        yield Finding.of(ConfigError("hbase-table-unsuitable", fault), *breaks)
    if not faults:
        yield Finding(Level.FINE, f"the table {name!r} has what the sink needs")
    return shape


def _creating(name: str, families: Sequence[ColumnFamily], split_keys: Sequence[bytes]) -> str:
    """The command of HBase's shell that makes the table as `create` does."""
    parts = [f"'{name}'"]
    for family in families:
        ttl = "" if family.ttl_s is None else f", TTL => {family.ttl_s}"
        parts.append(
            f"{{NAME => '{family.name.decode(errors='backslashreplace')}', VERSIONS => {family.versions_max}{ttl}}}"
        )
    if split_keys:
        cuts = ", ".join('"' + "".join(f"\\x{byte:02X}" for byte in key) + '"' for key in sorted(split_keys))
        parts.append(f"SPLITS => [{cuts}]")
    return f"create {', '.join(parts)}"


def _faults(settings: HBaseSettings, shape: TableShape, families: Sequence[ColumnFamily]) -> Iterator[str]:
    """What is wrong with the table, and what to do."""
    name = shape.name
    where = f"table {name!r} of HBase at {settings.servers}"
    if _ask(settings, name, "isTableDisabled", bool, tableName=_named(name)):
        yield f"{where} is disabled. Enable the table (enable '{name}')"
    for wanted in families:
        there, said = shape.family(wanted.name), wanted.name.decode(errors="replace")
        if there is None:
            yield f"{where} has no column family {said}: add it (alter '{name}', '{said}'), or mend the mapping"
        elif there.versions_max < wanted.versions_max:
            yield (
                f"family {said!r} of {where} keeps {there.versions_max} versions, and {wanted.versions_max} are needed:"
                f" alter it (VERSIONS => {wanted.versions_max})"
            )
    if shape.durability in _LOSES_ACKNOWLEDGED:
        yield (
            f"{where} has DURABILITY {shape.durability}: it acknowledges rows that a crash loses. Alter it to SYNC_WAL"
            " or FSYNC_WAL"
        )


def checked_name(name: str) -> str:
    """The name. Raises ConfigError where it cannot be the name of an HBase table."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            "option-value",
            f"a table is called table or namespace:table, of letters, digits, '_', '-', '.': not {name!r}",
        )
    return name


def _named(name: str) -> Any:
    """Namespace and table apart, as the administrative calls want them; the others take them as one."""
    namespace, _, table = checked_name(name).rpartition(":")
    return thrift.TTableName(ns=(namespace or "default").encode(), qualifier=table.encode())


def _ask(settings: HBaseSettings, table: str, call: str, read: Callable[[Any], T], /, **given: Any) -> T:
    def refusal(said: Exception) -> OnefoldError:
        return refused(said, table, settings.servers, call)

    return pool(settings).ask(call, compact_protocol.arguments(call, settings.protocol, **given), read, refusal)
