"""HBaseSink: what a user names, and what travels to the executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from onefold.core.contract import Committer, Guarantee, SinkWriter, TaskId
from onefold.core.errors import ConfigError
from onefold.hbase.mapping import RowKey, TableMapping
from onefold.hbase.settings import HBaseSettings
from onefold.sinks.announcing import AnnouncingCommitter, Place
from onefold.sinks.hbase.notes import TableNotes
from onefold.sinks.hbase.plan import Mode, Plan, Settings
from onefold.sinks.hbase.row_key import ByRowKey

__all__ = ["HBaseSink"]


class HBaseSink:
    def __init__(
        self,
        servers: str | HBaseSettings,
        table: str | TableMapping,
        *,
        row_key: str | Sequence[str] | RowKey | None = None,
        columns: Mapping[str, str] | None = None,
        family: str | None = None,
        mode: str = "row_key",
        name: str | None = None,
        order: str | Sequence[str] = (),
        delete: str | None = None,
        deletes: str = "tombstone",
        ledger_table: str = "onefold_ledger",
    ) -> None:
        if mode != "row_key":
            raise ConfigError(f"mode={mode!r} must be row_key")
        chosen: Mode = ByRowKey(_names(order), delete, deletes)
        ...
