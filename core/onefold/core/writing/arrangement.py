"""How an epoch's rows are partitioned and ordered among writers, so that each sink gets them as it needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.core.contract import InPlace, Ordered, Partitioned, Sink

EPOCH_COLUMN = "onefold_epoch"  # the number of a row's epoch, for a sink whose order names it


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Equal values of `partition_by` go to one writer, and among these the rows ascend by `order_by`.

    `in_place`: the rows stay in the tasks, and in the order, in which they come.
    """

    partition_by: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    in_place: bool = False

    @property
    def moves_rows(self) -> bool:
        return bool(self.partition_by or self.order_by)

    def joined(self, other: Arrangement) -> Arrangement | None:
        """An arrangement that satisfies both; None if there is none."""
        if self.in_place or other.in_place:
            return None if self.moves_rows or other.moves_rows else Arrangement(in_place=True)
        common = tuple(name for name in self.partition_by if name in other.partition_by)
        if self.partition_by and other.partition_by and not common:
            return None
        shorter, longer = sorted((self.order_by, other.order_by), key=len)
        if longer[: len(shorter)] != shorter:
            return None
        return Arrangement(common or self.partition_by or other.partition_by, longer)


AS_THEY_COME = Arrangement()


@dataclass(frozen=True, slots=True)
class Pass:
    """Sinks that are written together, since one arrangement suits them all."""

    arrangement: Arrangement
    sinks: tuple[Sink, ...]


def needed_by(sink: Sink) -> Arrangement:
    """The arrangement that a sink needs. Before `open`, as far as its options tell: it may depend on its server."""
    return Arrangement(
        partition_by=sink.partition_by() if isinstance(sink, Partitioned) else (),
        order_by=sink.order_by() if isinstance(sink, Ordered) else (),
        in_place=isinstance(sink, InPlace) and sink.in_place(),
    )


def passes(sinks: Sequence[Sink]) -> list[Pass]:
    """Group the sinks into as few passes over an epoch's rows as their needs allow: one, unless they contradict."""
    made: list[Pass] = []
    for sink in sinks:
        need = needed_by(sink)
        for number, there in enumerate(made):
            if (joined := there.arrangement.joined(need)) is not None:
                made[number] = Pass(joined, (*there.sinks, sink))
                break
        else:
            made.append(Pass(need, (sink,)))
    return made
