"""Sources that are read side by side: one that is far ahead in event time waits for the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from onefold.flow.time.clocks import Partition, Reached


@dataclass(frozen=True, slots=True)
class Alignment:
    """Of sources, by their uids: no partition of them is read on that is further ahead than the drift."""

    drift_us: int
    uids: frozenset[str]


def held(alignments: Iterable[Alignment], reached: Collection[Reached]) -> set[Partition]:
    """The partitions that the next epoch leaves alone: those that are ahead of the lowest one that is not silent."""
    found: set[Partition] = set()
    for each in alignments:
        known = [of for of in reached if of.partition[0] in each.uids]
        lowest = min((of.us for of in known if not of.is_silent), default=None)
        if lowest is not None:
            found |= {of.partition for of in known if of.us > lowest + each.drift_us}
    return found
