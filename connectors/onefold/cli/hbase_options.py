"""The command line's options of an HBase sink, for `verify` and `doctor`, and the sink that they describe."""

from __future__ import annotations

import importlib
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.core import ConfigError

if TYPE_CHECKING:
    from onefold.sinks import HBaseSink

__all__ = [
    "Columns",
    "DeleteMode",
    "DenseSequence",
    "Family",
    "Hash",
    "InfoPort",
    "KerberosService",
    "Ledger",
    "Merge",
    "Protocol",
    "RowKeyColumns",
    "Salt",
    "Sequence",
    "Servers",
    "TombstoneColumn",
    "Transport",
    "hbase_sink",
]


class _DeleteMode(StrEnum):
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
TombstoneColumn = Annotated[
    str | None, typer.Option(help="HBase: the column that marks deleted rows, if it was named.")
]
DeleteMode = Annotated[_DeleteMode | None, typer.Option(help="row_key: what a deletion leaves.")]
Merge = Annotated[
    str | None,
    typer.Option(help="rolling, incremental: 'amount=sum, at=max', replace, or a function as package.module:name."),
]
Sequence = Annotated[str | None, typer.Option(help="incremental: the column that grows within a row.")]
DenseSequence = Annotated[
    bool, typer.Option("--dense-sequence", help="incremental: each sequence is one more than the one before.")
]
Ledger = Annotated[str | None, typer.Option(help="The HBase sink's ledger, if it is not onefold_ledger.")]
Transport = Annotated[_Transport | None, typer.Option(help="HBase: as the Thrift servers have it.")]
Protocol = Annotated[_Protocol | None, typer.Option(help="HBase: as the Thrift servers have it.")]
InfoPort = Annotated[int | None, typer.Option(help="HBase: of the Thrift servers' web pages.")]
KerberosService = Annotated[str | None, typer.Option(help="HBase: the first part of the servers' principals.")]


def hbase_sink(servers: str | None, table: str | None, **given: Any) -> HBaseSink | None:
    """Makes the sink; None where no servers were given. HBaseSink's defaults hold for what is left out.

    `given` has HBaseSink's names, with `hbase_` in front where another sink has that option too. Raises ConfigError.
    """
    options = {name: _plain(value) for name, value in given.items() if not _is_left_out(value)}
    if servers is None:
        if table is not None or options:
            raise ConfigError(
                "option-missing",
                f"{_option(next(iter(options), 'hbase_table'))} goes with --hbase, the sink's Thrift2 servers",
            )
        return None
    if table is None or "row_key" not in options:
        raise ConfigError(
            "option-missing", "--hbase goes with the sink's table, and with --row-key, the columns of its row key"
        )
    from onefold.clients.hbase import HBaseSettings
    from onefold.sinks import HBaseSink

    of_servers = {of.name: options.pop(of.name) for of in fields(HBaseSettings) if of.name in options}
    if "merge" in options:
        options["merge"] = _merge(options["merge"])
    return HBaseSink(
        HBaseSettings(servers, **of_servers),
        table,
        **{name.removeprefix("hbase_"): value for name, value in options.items()},
    )


def _is_left_out(value: Any) -> bool:
    """A number is never left out, also not 0, which equals False."""
    return value is None or value is False or value in ("", [])


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _merge(text: str) -> Any:
    """The value of HBaseSink's `merge`."""
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
            "option-value",
            f"--merge={text!r} is 'amount=sum, at=max', or replace, or a function as package.module:name, of a module"
            f" that is installed or on PYTHONPATH: {error}",
        ) from error


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
