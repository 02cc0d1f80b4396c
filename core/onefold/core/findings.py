"""What an examination of a pipeline's servers finds; `onefold doctor` prints it. Examining changes nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from onefold.core.checks import require
from onefold.core.contract import Committable, Guarantee
from onefold.core.invariants import AtomicEpoch

__all__ = ["Examined", "Finding", "Held", "Holding", "Level", "not_promised"]


class Level(enum.Enum):
    FINE = "fine"
    CAUTION = "caution"  # the guarantee holds; somebody should know all the same
    PROBLEM = "problem"  # it breaks the guarantee, or keeps the pipeline from starting


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `breaks` names the invariants that do not hold as long as it is so."""

    level: Level
    says: str
    breaks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.level is Level.PROBLEM or not self.breaks, f"only a problem breaks an invariant ({self.says})")


@runtime_checkable
class Examined(Protocol):
    """A sink that can look at what its guarantee rests on."""

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterable[Finding]:
        """Without changing anything. `deciding_s`: the longest that one of the pipeline's recent epochs took from its
        opening to its decision, where that is known. Raises what asking a server raises."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Something that a task has prepared and nobody has ended. `costs` says what it does till then, what ends it."""

    committable: Committable
    age_s: float
    costs: str


@runtime_checkable
class Holding(Protocol):
    """A sink that can list what is prepared of it, and since when."""

    def held(self, pipeline: str) -> Iterable[Held]:
        """Without changing anything. Raises what asking a server raises."""
        ...


def not_promised(guarantee: Guarantee) -> dict[str, str]:
    """The named invariants that a sink with this guarantee does not give, and why. It gives all others."""
    return {} if guarantee.atomic_epoch else {AtomicEpoch.name: "readers may see an epoch part by part"}
