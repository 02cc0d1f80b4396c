"""What a move of positions would do: for each partition, and for each sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onefold.core import EpochRecord, Positions
from onefold.core.moves import Repeats, come_again, count, passed_over
from onefold.core.operations.moving import standing
from onefold.core.protocol.effects import StoreFacts

__all__ = ["MovePlan", "PartitionMove", "planned"]


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """One partition: its next offset now and then, how many records nobody is to process, and how many come again."""

    name: str
    now: int
    then: int
    passed_over: int
    again: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """`again`: what records that come again make of each sink that they come to; none of a sink without any."""

    stands: Positions
    to: Positions
    partitions: tuple[PartitionMove, ...]
    again: Mapping[str, Repeats]

    def doubled(self) -> list[str]:
        return [name for name, repeats in self.again.items() if repeats is Repeats.DOUBLED]

    def of_sinks(self, sinks: Sequence[str]) -> Iterator[str]:
        """A line for each sink."""
        for name in sinks:
            match self.again.get(name):
                case None:
                    yield f"{name}: no record comes to it twice"
                case Repeats.NEW:
                    yield f"{name}: what it writes to is empty, and begins at the new positions"
                case Repeats.ABSORBED:
                    yield f"{name}: records that come again change nothing, once they all have (upserts, row keys)"
                case Repeats.DOUBLED:
                    yield f"{name}: records that come again would be there twice"


def planned(facts: StoreFacts, moves: Sequence[EpochRecord], to: Positions, repeats: Mapping[str, Repeats]) -> MovePlan:
    """The plan of a pipeline that stands somewhere. `repeats`: what each sink makes of records that come again."""
    stands = standing(facts) or Positions()
    initial = facts.frozen or stands
    now, then = dict(stands.items), dict(to.items)
    passed, again = passed_over(initial, moves, stands, to), come_again(initial, moves, stands, to)
    partitions = tuple(
        PartitionMove(
            name,
            int(now.get(name, 0)),
            int(then.get(name, 0)),
            count({name: passed.get(name, [])}),
            count({name: again.get(name, [])}),
        )
        for name in sorted(now.keys() | then.keys())
    )
    coming = {sink: count(come_again(initial, moves, stands, to, sink)) for sink in repeats}
    return MovePlan(stands, to, partitions, {sink: each for sink, each in repeats.items() if coming[sink]})
