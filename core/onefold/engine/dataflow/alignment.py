"""How the subtasks of a run wait for the barriers of an epoch: what is asked for, and what a chain then has.

Chains that go by event time, or lead to one that does, are aligned unless stages are asked for: what operators know of
time is the same in all subtasks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onefold.core.errors import ConfigError
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.flow.processing.mechanisms import Mechanism, check_alignment

__all__ = ["ALIGNED", "HOW", "Alignment", "alignment_in", "alignment_of", "refuse_write_through"]

HOW = ("aligned", "unaligned", "switched", "not aligned")
"""An epoch's barriers: waited for; overtaken, at once or after the timeout; each taken as it came."""
FLIGHT_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class Alignment:
    """Of a run: "aligned", "unaligned", "at_least_once" or "staged". `timeout_s` is how long a subtask aligns before
    unaligned barriers overtake; one with more than `flight_bytes_max` to overtake stays aligned in that epoch."""

    kind: str = "aligned"
    timeout_s: float = 0.0
    flight_bytes_max: int = FLIGHT_BYTES_MAX

    @property
    def overtakes(self) -> bool:
        return self.kind == "unaligned"


ALIGNED = Alignment()


def alignment_of(kind: str, timeout_s: float | None, mechanism: Mechanism = "barriers") -> Alignment:
    """What settings ask for. Raises ConfigError."""
    check_alignment(kind, timeout_s, mechanism)
    return Alignment("staged" if mechanism == "microbatch" else kind, timeout_s or 0.0)


def refuse_write_through(kind: str, write_through: Collection[str]) -> None:
    """Raise ConfigError where an epoch that runs again would show other rows beside those that these sinks have."""
    if write_through and kind in ("unaligned", "at_least_once"):
        raise ConfigError(
            "alignment-write-through",
            f"alignment={kind!r} does not go with {', '.join(write_through)}, which is written before an epoch is"
            " decided: one that runs again would give other rows beside those. Leave out alignment=, or write to a"
            " transactional, two-phase or staged sink",
        )


def alignment_in(plan: Plan, chain: Chain, asked: Alignment) -> Alignment:
    """That of a chain, where the run is to have another."""
    timed = plan.graph.before_event_time() if asked.kind != "staged" else ()
    return ALIGNED if any(node.number in timed for node in chain.nodes) else asked
