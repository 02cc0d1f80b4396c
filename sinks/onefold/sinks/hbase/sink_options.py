"""The names, types and defaults of HBaseSink's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onefold.clients.hbase.rows.table_config import HBaseTableConfig
from onefold.clients.options import options_model
from onefold.sinks.hbase.merge.aggregates import Function

__all__ = ["HBaseSinkConfig"]


@options_model
@dataclass(frozen=True, kw_only=True)
class HBaseSinkConfig(HBaseTableConfig):
    """The options of HBaseSink, whose docstring explains them."""

    name: str = ""
    mode: Literal["row_key", "rolling", "incremental"] = "row_key"
    order: str | Sequence[str] = ()
    delete_when_true: str | None = None
    delete_mode: Literal["tombstone", "real"] = "tombstone"
    merge: Mapping[str, str] | Function | str | None = None
    sequence: str | None = None
    dense_sequence: bool = False
    repartition: bool = True
    regions: int = 1
    ledger: str = "onefold_ledger"
