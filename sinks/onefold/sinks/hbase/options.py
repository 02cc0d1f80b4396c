"""The options of HBaseSink, each with its name, type and default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onefold.clients.hbase.rows.options import HBaseTableOptions
from onefold.sinks.hbase.merge.aggregates import Function

__all__ = ["HBaseSinkOptions"]


@dataclass(frozen=True, kw_only=True)
class HBaseSinkOptions(HBaseTableOptions):
    """What a user says of a sink. HBaseSink's docstring has what each means."""

    name: str | None = None
    mode: str = "row_key"
    order: str | Sequence[str] = ()
    delete_when_true: str | None = None
    delete_mode: str = "tombstone"
    merge: Mapping[str, str] | Function | str | None = None
    sequence: str | None = None
    dense_sequence: bool = False
    repartition: bool = True
    regions: int = 1
    ledger: str = "onefold_ledger"
