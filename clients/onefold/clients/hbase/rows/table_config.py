"""The options that HBaseSource and HBaseSink share: which servers, which table, and how its rows are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.rows.rowkeys import RowKey
from onefold.core.errors import ConfigError


@dataclass(frozen=True)
class HBaseTableConfig:
    """Which table, on which servers, and how its rows are written.

    servers           "thrift1:9090,thrift2:9090", or HBaseSettings
    table             "orders" or "shop:orders"; or a TableMapping, which has all of the following options
    row_key           the columns of which row keys are made: "customer, id"
    salt              16: one byte in front of the row key, so that neighbouring keys are in 16 places of the table
    hash              4: so many bytes of a hash in front of the row key, so that no two keys are neighbours
    columns           the cell and encoding of columns: {"amount": "f:amount decimal(12,2)"}, or the same as a text
    family            the family of all columns that `columns` does not name
    tombstone_column  the HBase column that marks deleted rows: "f:_deleted"
    """

    servers: str | HBaseSettings
    table: str | TableMapping
    _: KW_ONLY
    row_key: str | Sequence[str] | None = field(default=None, metadata={"whole": True})
    salt: int | None = None
    hash: int | None = None
    columns: Mapping[str, str] | str | None = None
    family: str | None = None
    tombstone_column: str | None = None

    def __post_init__(self) -> None:
        _ = self.settings
        if isinstance(self.table, TableMapping):
            own = [field.name for field in dataclasses.fields(HBaseTableConfig)][2:]
            if given := [name for name in own if getattr(self, name) not in (None, "", {})]:
                raise ConfigError(
                    "options-conflict", f"{given[0]}= is in the mapping that was given as table=: leave it out here"
                )
        elif not self.row_key:
            raise ConfigError(
                "option-missing", "row_key= names the columns of which row keys are made: row_key='customer, id'"
            )

    @property
    def settings(self) -> HBaseSettings:
        return self.servers if isinstance(self.servers, HBaseSettings) else HBaseSettings(self.servers)

    @property
    def mapping(self) -> TableMapping:
        """As it is declared: encodings may be open."""
        if isinstance(self.table, TableMapping):
            return self.table
        assert self.row_key is not None, "checked when the options were made"
        row_key = RowKey.of(self.row_key, self.salt, self.hash)
        return TableMapping.of(self.table, row_key, self.columns, self.family, self.tombstone_column)
