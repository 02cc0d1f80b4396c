"""The options of HBaseSink, and the mode that they ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onefold.clients.hbase.rows.mapping import pairs_of
from onefold.clients.hbase.rows.table_config import HBaseTableConfig
from onefold.clients.options import names_of, options_model
from onefold.core.errors import ConfigError
from onefold.sinks.hbase.aggregates import Function
from onefold.sinks.hbase.modes.incremental import Incremental
from onefold.sinks.hbase.modes.rolling import Rolling
from onefold.sinks.hbase.modes.row_key import ByRowKey
from onefold.sinks.hbase.sink_plan import Mode


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


MODES = {
    "row_key": {"order", "delete_when_true", "delete_mode"},
    "rolling": {"order", "merge"},
    "incremental": {"sequence", "merge", "dense_sequence"},
}


def mode_of(options: HBaseSinkConfig) -> Mode:
    """The mode that a user asked for. Raises ConfigError for options that belong to another, or are missing."""
    mode, merge = options.mode, options.merge
    for field in dataclasses.fields(options):
        theirs = [other for other, names in MODES.items() if field.name in names]
        value = getattr(options, field.name)
        if theirs and mode not in theirs and value and value != field.default:
            hint = ": the last row of a key is that of the highest sequence" if field.name == "order" else ""
            modes = " and ".join(f"mode={other!r}" for other in theirs)
            raise ConfigError("options-conflict", f"{field.name}= belongs to {modes}, not to mode={mode!r}{hint}")
    order = names_of(options.order)
    if mode == "row_key":
        return ByRowKey(order, options.delete_when_true, options.delete_mode)
    if merge is None:
        raise ConfigError(
            "option-missing",
            f"mode={mode!r} needs merge=, how new values and those of the table become one: {{'amount': 'sum'}}, a"
            " function of two record batches, or 'replace'",
        )
    if isinstance(merge, str) and ("=" in merge or merge.startswith("{")):
        merge = pairs_of("merge", merge, "sum")
    if mode == "rolling":  # without a base to merge into, it is written as by row keys
        return ByRowKey(order, name=mode) if merge == "replace" else Rolling.of(merge, order)
    if not options.sequence:
        raise ConfigError(
            "option-missing", "mode='incremental' needs sequence=, the column of numbers that grow within a row"
        )
    return Incremental.of(options.sequence, merge, options.dense_sequence)
