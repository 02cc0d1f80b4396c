"""An HBase sink on the command line: the options that `verify` and `doctor` share, and the sink that they describe."""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.core import ConfigError

if TYPE_CHECKING:
    from onefold.sinks import HBaseSink

__all__ = [
    "Columns",
    "Delete",
    "Deleted",
    "Deletes",
    "DenseIds",
    "Family",
    "Hash",
    "InfoPort",
    "KerberosService",
    "LedgerTable",
    "Merge",
    "MessageId",
    "Protocol",
    "RowKeyColumns",
    "Salt",
    "Servers",
    "Transport",
    "hbase_sink",
]


class _Deletes(StrEnum):
    TOMBSTONE = "tombstone"
    REAL = "real"


class _Transport(StrEnum):
    BUFFERED = "buffered"
    FRAMED = "framed"


class _Protocol(StrEnum):
    BINARY = "binary"
    COMPACT = "compact"


Servers = Annotated[str | None, typer.Option(help="An HBase sink's Thrift2 servers, host:port, separated by commas.")]
RowKeyColumns = Annotated[str, typer.Option(help="HBase: the columns of which row keys are made: 'customer, id'.")]
Salt = Annotated[int | None, typer.Option(help="HBase: the salt in front of the row key.")]
Hash = Annotated[int | None, typer.Option(help="HBase: the bytes of a hash in front of the row key.")]
Columns = Annotated[str, typer.Option(help="HBase: the columns' cells: 'amount = f:amount, note = f:note string'.")]
Family = Annotated[str | None, typer.Option(help="HBase: the family of all columns that --columns does not name.")]
Deleted = Annotated[str | None, typer.Option(help="HBase: the cell that marks deleted rows, if it was named.")]
Delete = Annotated[str | None, typer.Option(help="row_key: the boolean column that marks deletions.")]
Deletes = Annotated[_Deletes | None, typer.Option(help="row_key: what a deletion leaves.")]
Merge = Annotated[
    str | None,
    typer.Option(help="rolling, incremental: 'amount=sum, at=max', replace, or a function as package.module:name."),
]
MessageId = Annotated[str | None, typer.Option(help="incremental: the column of the messages' ids.")]
DenseIds = Annotated[bool, typer.Option("--dense-ids", help="incremental: each id is one more than the one before.")]
LedgerTable = Annotated[str | None, typer.Option(help="The HBase sink's ledger_table.")]
Transport = Annotated[_Transport | None, typer.Option(help="HBase: as the Thrift servers have it.")]
Protocol = Annotated[_Protocol | None, typer.Option(help="HBase: as the Thrift servers have it.")]
InfoPort = Annotated[int | None, typer.Option(help="HBase: of the Thrift servers' web pages.")]
KerberosService = Annotated[str | None, typer.Option(help="HBase: the first part of the servers' principals.")]

_OF_SERVERS = ("transport", "protocol", "kerberos_service", "info_port")
_OF_ROW_KEYS = ("row_key", "salt", "hash")


def hbase_sink(servers: str | None, table: str | None, **given: Any) -> HBaseSink | None:
    """The sink; None where no servers were given. What was left out is as HBaseSink has it. Raises ConfigError.

    `given` has the options' names; those that HBaseSink does not call so begin with `hbase_`, as its servers do.
    """
    told = {name: _plain(value) for name, value in given.items() if not _is_left_out(value)}
    if servers is None:
        if table is not None or told:
            raise ConfigError(
                f"{_option(next(iter(told), 'hbase_table'))} goes with --hbase, the sink's Thrift2 servers"
            )
        return None
    if table is None or "row_key" not in told:
        raise ConfigError("--hbase goes with the sink's table, and with --row-key, the columns of its row key")
    from onefold.clients.hbase import HBaseSettings
    from onefold.clients.hbase.rows.mapping import RowKey
    from onefold.sinks import HBaseSink

    of_servers = {name: told.pop(name) for name in _OF_SERVERS if name in told}
    columns, *prefix = (told.pop(name, None) for name in _OF_ROW_KEYS)
    if "merge" in told:
        told["merge"] = _merge(told["merge"])
    if "message_id" in told:
        told["id"] = told.pop("message_id")
    return HBaseSink(
        HBaseSettings(servers, **of_servers),
        table,
        row_key=RowKey.of(columns, *prefix),
        **{name.removeprefix("hbase_"): value for name, value in told.items()},
    )


def _is_left_out(value: Any) -> bool:
    """A number never is, 0 neither: that is False to `==`."""
    return value is None or value is False or value in ("", [])


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _merge(text: str) -> Any:
    """As HBaseSink takes it."""
    if text == "replace":
        return text
    if "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        return {name.strip(): merge.strip() for name, _, merge in pairs}
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--merge={text!r} is 'amount=sum, at=max', or replace, or a function as package.module:name, of a module"
            f" that is installed or on PYTHONPATH: {error}"
        ) from error


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
