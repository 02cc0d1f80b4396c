"""The mechanisms of fault tolerance: what protects a flow's records on the engine, and what each promises and refuses.

On Spark there is no choice: its micro-batches are the second of these.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

from onefold.core.contract import EpochRecord
from onefold.core.errors import ConfigError

Mechanism: TypeAlias = Literal["barriers", "microbatch", "transaction", "ack"]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
AlignmentKind: TypeAlias = Literal["aligned", "unaligned", "at_least_once"]  # stages are a mechanism of its own

_MARK = "~"  # between a job's fingerprint and its mechanism
_DOUBLES = "!"  # behind it, where records between two barriers may count twice
_PROMISED = {
    "barriers": "",
    "microbatch": "each stage takes all of an epoch before it gives the next one its rows",
    "transaction": "each step is durable on this machine's disk before the next takes its rows: what is under way is"
    " lost with this disk",
    "ack": "at least once: records come again after a crash, and so twice into a sink that appends; the state of"
    " operators is in memory alone, and lost at a restart",
}


def has_snapshots(mechanism: Mechanism) -> bool:
    """Whether epochs cut through the whole flow, so that each has a snapshot of the operators' state."""
    return mechanism in ("barriers", "microbatch")


def has_positions(mechanism: Mechanism) -> bool:
    """Whether an epoch's positions are those of the flow's sources."""
    return mechanism != "transaction"


def promised(mechanism: Mechanism) -> str:
    """What it makes of the guarantee, for people; empty for barriers, of which all else speaks."""
    return _PROMISED[mechanism]


def marked(fingerprint: str, mechanism: Mechanism, doubles: bool = False) -> str:
    """The fingerprint of epochs of a flow that this mechanism protects; `doubles` where its barriers do not, wholly."""
    if doubles:
        return f"{fingerprint}{_DOUBLES}"
    return fingerprint if mechanism == "barriers" else f"{fingerprint}{_MARK}{mechanism}"


def mechanism_of(epoch: EpochRecord) -> str | None:
    """What protected it; None where it is a move of positions, of which each mechanism may go on."""
    if epoch.is_move or not epoch.fingerprint:
        return None
    return epoch.fingerprint.partition("+")[0].partition(_MARK)[2] or "barriers"


def may_double(epoch: EpochRecord) -> str:
    """Why records of it may be there twice after a crash; empty where they may not."""
    if epoch.fingerprint.endswith(_DOUBLES):
        return "alignment at_least_once"
    return "mechanism ack" if mechanism_of(epoch) == "ack" else ""


def check_sinks_shown_early(flow: str, mechanism: str, write_through: Collection[str]) -> None:
    """Raise ConfigError for sinks whose rows show before an epoch is decided: after a crash its range gives others."""
    if mechanism == "ack" and write_through:
        raise ConfigError(
            "mechanism-write-through",
            f"flow {flow!r} writes to {', '.join(write_through)} before an epoch is decided, and such an epoch has to"
            " give the same rows again after a crash: with mechanism='ack' it does not. Write to a transactional,"
            " two-phase or staged sink, or use mechanism='barriers'",
        )


def refuse_write_through(kind: str, write_through: Collection[str]) -> None:
    """Raise ConfigError where an epoch that runs again would show other rows beside those that these sinks have."""
    if write_through and kind in ("unaligned", "at_least_once"):
        raise ConfigError(
            "alignment-write-through",
            f"alignment={kind!r} does not go with {', '.join(write_through)}, which is written before an epoch is"
            " decided: one that runs again would give other rows beside those. Leave out alignment=, or write to a"
            " transactional, two-phase or staged sink",
        )


def check_alignment(kind: str, timeout_s: float | None, mechanism: Mechanism) -> None:
    """Raise ConfigError for what is no way to wait for barriers, or where the mechanism has none."""
    if kind not in get_args(AlignmentKind):
        raise ConfigError("option-value", f"alignment={kind!r}: there are {', '.join(get_args(AlignmentKind))}")
    if mechanism != "barriers" and kind != "aligned":
        raise ConfigError(
            "options-conflict",
            f"alignment={kind!r} is of barriers, and mechanism={mechanism!r} has none that a subtask could wait for"
            " otherwise: leave one of both out",
        )
    if timeout_s is not None and not (kind == "unaligned" and 0 < timeout_s < float("inf")):
        said = f"alignment_timeout_s={timeout_s!r} is a number of seconds above 0, with alignment='unaligned' alone"
        raise ConfigError("option-value", said)
