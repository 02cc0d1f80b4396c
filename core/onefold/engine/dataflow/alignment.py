"""How the subtasks of a run wait for the barriers of an epoch: what is asked for, and what a chain then has.

Some chains are aligned unless stages are asked for (`onefold.flow.graph.epochs_apart`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onefold.engine.dataflow.chains import Chain, Plan
from onefold.flow.graph.epochs_apart import aligned_anyway
from onefold.flow.processing.mechanisms import Mechanism, check_alignment

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


def alignment_in(plan: Plan, chain: Chain, asked: Alignment, has_flight: bool = False) -> Alignment:
    """That of a chain, where the run is to have another. `has_flight`: its subtask begins with what was in flight."""
    is_aligned = asked.kind != "staged" and chain.head.number in aligned_anyway(plan.graph, asked.overtakes)
    if has_flight and chain.head.keeps_event_time and (is_aligned or not asked.overtakes):
        return Alignment("unaligned", math.inf)  # it takes that epoch by epoch, and no barrier overtakes
    return ALIGNED if is_aligned else asked
