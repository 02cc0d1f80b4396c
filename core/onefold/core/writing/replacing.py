"""Rows of groups that are written again when they change: which sinks replace a group's older row by its newer one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onefold.core.contract import Upsert
from onefold.core.errors import ConfigError
from onefold.core.writing.arrangement import EPOCH_COLUMN


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the columns come from that were asked for."""

    of_values: tuple[str, ...] = ()  # from what is aggregated, or from the clock: the next epoch may have another value
    unknown: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # by what the rows are grouped besides; nothing where a column is unknown


def check_mode(mode: str) -> None:
    """Raise ConfigError for an output mode of Spark that no sink can follow."""
    if mode == "complete":
        raise ConfigError(
            "complete-mode-unsupported",
            "output_mode='complete' writes all groups again in every epoch, and no sink takes the groups away that are"
            " gone. Use output_mode='update', which writes the groups that changed, and sinks that replace rows by key",
        )
    if mode not in ("append", "update"):
        raise ConfigError("option-value", f"output_mode={mode!r} must be append or update")


def check_replaces(
    sink: str,
    upsert: Upsert | None,
    origins: Callable[[Sequence[str]], Origins],
    *,
    row: str,
    instead: str,
    newest: Sequence[str] = (EPOCH_COLUMN,),
) -> None:
    """Raise ConfigError where older rows of a group would stay beside its newest one, or groups replace each other.

    The newest epoch's row of a group is the right one. So `order` has the epoch's number, or another column of `newest`
    that grows with it, and before it only what is the same in all rows of a group: then it tells groups of one key
    apart, as the key does. `row` and `instead` are for the error: which row is written again, and what to do where no
    sink is to replace it.
    """
    by = " or ".join(map(repr, newest))
    if upsert is None:
        raise ConfigError(
            "update-into-appends",
            f"{row} is written again whenever its group changes, and sink {sink!r} would keep each of these rows. Let"
            f" it replace rows by key (mode='upsert' with key= and order={newest[0]!r}; in HBase mode='row_key'; in"
            f" Kafka delivery='transactional' with key=); or {instead}",
        )
    known = [at for at, name in enumerate(upsert.order) if name in newest]
    if upsert.order and not known:
        raise ConfigError(
            "update-without-epoch",
            f"of {row} that of the newest epoch is the right one, and sink {sink!r} keeps the highest by"
            f" {', '.join(upsert.order)}: let order= begin with {by}, which grows with the epochs",
        )
    before = upsert.order[: known[0]] if known else ()
    found = origins((*upsert.key, *before))
    if found.of_values:
        raise ConfigError(
            "update-by-values",
            f"{', '.join(found.of_values)} may have another value whenever a group is written again, and sink {sink!r}"
            f" has it in its key, or in order= before {by}: a group's older rows would stay. Let the key"
            f" have the columns of the groups, and order= begin with {by}",
        )
    if unknown := [name for name in before if name in found.unknown]:
        raise ConfigError(
            "update-by-values",
            f"sink {sink!r} has {', '.join(unknown)} in order= before {by}, and the query's plan does not"
            " show whether a group keeps these values (on Spark Connect, or behind a Python function or a join). Let"
            f" order= begin with {by}",
        )
    if found.left_out:
        raise ConfigError(
            "update-key-too-small",
            f"there is a row for each group, and sink {sink!r} has one for each {', '.join(upsert.key)}: groups that"
            f" differ in {', '.join(found.left_out)} alone would replace each other. Add it to the sink's key",
        )
