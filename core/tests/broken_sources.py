"""Sources that break one promise each, made of docs/examples/lines_source.py, which keeps them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from multiprocessing import parent_process
from typing import Any

import pyarrow as pa
from lines_source import EPOCH_MAX, PARTITION, LinesPlanner, LinesSource, at, line_of

from onefold.core.errors import DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.source import Journal, Part, Split

_COUNT = count()


class Planned(LinesSource):
    """The same with another planner."""

    PLANNER: type[LinesPlanner]

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> LinesPlanner:
        del journal
        return self.PLANNER(self, frozen, until)


class BeginsAtTheEnd(Planned):
    class PLANNER(LinesPlanner):
        def initial(self) -> Positions:
            return self.latest(Positions())  # asked anew, whatever was frozen


class StopsShort(Planned):
    class PLANNER(LinesPlanner):
        def end(self, start: Positions) -> Positions:
            last = line_of(self.latest(start) if self.until is None else self.until)
            return at(max(line_of(start), min(line_of(start) + EPOCH_MAX, last - 1)))


class CountsNothing(Planned):
    class PLANNER(LinesPlanner):
        unit = ""


class CountsWhatItHasRead(Planned):
    class PLANNER(LinesPlanner):
        def behind(self, start: Positions) -> Mapping[str, int]:
            return {name: line_of(self.latest(start)) for name in super().behind(start)}


class Overlaps(Planned):
    class PLANNER(LinesPlanner):
        def splits(self, span: Range) -> list[Split]:
            return [
                replace(split, range=(max(0, split.range[0] - 1), split.range[1])) for split in super().splits(span)
            ]


class LeavesOut(Planned):
    class PLANNER(LinesPlanner):
        def splits(self, span: Range) -> list[Split]:
            return [replace(split, range=(split.range[0] + 1, split.range[1])) for split in super().splits(span)]


class SplitsAnew(Planned):
    class PLANNER(LinesPlanner):
        def splits(self, span: Range) -> list[Split]:
            return [replace(split, size=next(_COUNT)) for split in super().splits(span)]


class SaysThatThisWasAll(Planned):
    class PLANNER(LinesPlanner):
        def cut(self) -> list[str]:
            return []


class GoesBeyondItsEnd(Planned):
    class PLANNER(LinesPlanner):
        def end(self, start: Positions) -> Positions:
            self.is_cut = line_of(start) + EPOCH_MAX < (last := line_of(self.latest(start)))
            return at(min(line_of(start) + EPOCH_MAX, last))


class ReadsBackwardsElsewhere(LinesSource):
    def lines(self) -> list[str]:
        return super().lines()[:: 1 if parent_process() is None else -1]


class ReadOnce(Planned):
    """The lines as they are when they are planned."""

    is_of_one_moment = True

    class PLANNER(LinesPlanner):
        def latest(self, start: Positions) -> Positions:
            return at(max(line_of(start), 1 if self.until is None else line_of(self.until)))

        def end(self, start: Positions) -> Positions:
            return self.latest(start)

        def is_done(self, at: Positions) -> bool:
            return line_of(at) == (1 if self.until is None else line_of(self.until))

        def splits(self, span: Range) -> list[Split]:
            return [] if span.is_empty else [Split(PARTITION, (0, len(self.source.lines())))]


class OnceAgain(ReadOnce):
    class PLANNER(ReadOnce.PLANNER):
        def end(self, start: Positions) -> Positions:
            last = line_of(self.latest(start))
            return at(max(last, 2 if len(self.source.lines()) > 3 * EPOCH_MAX and line_of(start) else 0))


class OfManyMoments(ReadOnce):
    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        return super().read(replace(split, range=(0, len(self.lines()))), guarded=guarded)


class OfTheFirstMoment(ReadOnce):
    class PLANNER(ReadOnce.PLANNER):
        def splits(self, span: Range) -> list[Split]:
            self.__dict__.setdefault("first", super().splits(span))
            return [] if span.is_empty else list(self.__dict__["first"])


class OthersColumns(LinesSource):
    def arrow_schema(self) -> pa.Schema:
        return pa.schema({"id": pa.int32()})


class SaysNothingOfBadOnes(LinesSource):
    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        lenient = LinesSource(self.path, "skip", 99)
        return (replace(part, bad=part.bad.slice(0, 0)) for part in lenient.read(split, guarded=guarded))


class PassesOverLost(LinesSource):
    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        try:
            yield from super().read(split, guarded=guarded)
        except DataLoss:
            return


class HoldsALock(LinesSource):
    def __getstate__(self) -> Any:
        raise TypeError("cannot pickle this")
