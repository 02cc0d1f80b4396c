"""Which mode a user asked for, and which settings belong to it."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.core.errors import ConfigError
from onefold.sinks.hbase.merge.aggregates import Function
from onefold.sinks.hbase.modes.incremental import Incremental
from onefold.sinks.hbase.modes.rolling import Rolling
from onefold.sinks.hbase.modes.row_key import ByRowKey
from onefold.sinks.hbase.plan import Mode

__all__ = ["MODES", "mode_of"]

MODES = {
    "row_key": {"order", "delete", "deletes"},
    "rolling": {"order", "merge"},
    "incremental": {"id", "merge", "dense_ids"},
}


def mode_of(
    mode: str,
    *,
    order: tuple[str, ...] = (),
    delete: str | None = None,
    deletes: str = "tombstone",
    merge: Mapping[str, str] | Function | str | None = None,
    id: str | None = None,
    dense_ids: bool = False,
) -> Mode:
    """Raises ConfigError for settings that belong to another mode, or are missing."""
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} must be one of {', '.join(MODES)}")
    given: dict[str, object] = {"order": order, "delete": delete, "deletes": deletes != "tombstone"}
    given |= {"merge": merge, "id": id, "dense_ids": dense_ids}
    for name, value in given.items():
        if value and name not in MODES[mode]:
            theirs = " and ".join(f"mode={other!r}" for other, names in MODES.items() if name in names)
            hint = ": the last row of a key is that of the highest id" if name == "order" else ""
            raise ConfigError(f"{name}= belongs to {theirs}, not to mode={mode!r}{hint}")
    if mode == "row_key":
        return ByRowKey(order, delete, deletes)
    if merge is None:
        raise ConfigError(
            f"mode={mode!r} needs merge=, how new values and those of the table become one: {{'amount': 'sum'}}, a"
            " function of two record batches, or 'replace'"
        )
    if mode == "rolling":
        return Rolling.of(merge, order)
    if not id:
        raise ConfigError("mode='incremental' needs id=, the column of the messages' ids, which grow within a row")
    return Incremental.of(id, merge, dense_ids)
