"""A source of lines of one file, as simple as one can be that keeps every promise, and others that break one each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pyarrow as pa

from onefold.core.dead_letters import BAD_COLUMNS
from onefold.core.errors import BadRecord, DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.source import Journal, Keep, Part, Split

IDS = pa.schema({"id": pa.int64()})
EPOCH_MAX = 7
_COUNT = count()


@dataclass(frozen=True)
class Lines:
    """One number a line; a position counts lines."""

    path: str
    on_error: str = "fail"
    bad_records_max: int = 0
    name: str = "lines"

    def covers(self, name: str) -> bool:
        return name == "lines/0"

    def resolved(self, keep: Keep) -> Lines:
        del keep
        return self

    def arrow_schema(self) -> pa.Schema:
        return IDS

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> LinesPlanner:
        del journal
        return LinesPlanner(self, frozen, until)

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        del guarded
        start, end = split.range
        lines = self.lines()[start:end]
        if len(lines) < end - start:
            raise DataLoss("records-deleted", f"{split.partition} [{start}, {end})")
        bad = [line for line in lines if not line.isdigit()]
        if len(bad) > (self.bad_records_max if self.on_error != "fail" else 0):
            raise BadRecord("record-unreadable", bad[0])
        good = [{"id": int(line)} for line in lines if line.isdigit()]
        letters = [{"value": line.encode(), "reason": "no number"} for line in bad]
        yield Part(pa.RecordBatch.from_pylist(good, IDS), pa.RecordBatch.from_pylist(letters, BAD_COLUMNS))

    def lines(self) -> list[str]:
        return Path(self.path).read_text().split()


@dataclass
class LinesPlanner:
    source: Lines
    frozen: Positions | None
    until: Positions | None

    def initial(self) -> Positions:
        return self.frozen or at(0)

    def latest(self, start: Positions) -> Positions:
        del start
        return at(len(self.source.lines()))

    def end(self, start: Positions) -> Positions:
        last = self.latest(start) if self.until is None else self.until
        return at(min(of(start) + EPOCH_MAX, of(last)))

    def splits(self, span: Range) -> list[Split]:
        return [Split("lines/0", (of(span.start), of(span.end)))] if not span.is_empty else []

    def is_done(self, at: Positions) -> bool:
        return self.until is not None and of(at) >= of(self.until)

    def completed(self, end: Positions) -> None: ...

    def close(self) -> None: ...


def at(line: int) -> Positions:
    return Positions.of({"lines/0": line})


def of(positions: Positions) -> int:
    return int(dict(positions.items)["lines/0"])


class Planned(Lines):
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
            last = of(self.latest(start) if self.until is None else self.until)
            return at(max(of(start), min(of(start) + EPOCH_MAX, last - 1)))


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


class GoesBeyondItsEnd(Planned):
    class PLANNER(LinesPlanner):
        def end(self, start: Positions) -> Positions:
            return at(min(of(start) + EPOCH_MAX, of(self.latest(start))))


class ReadsBackwardsElsewhere(Lines):
    def lines(self) -> list[str]:
        return super().lines()[:: 1 if parent_process() is None else -1]


class OthersColumns(Lines):
    def arrow_schema(self) -> pa.Schema:
        return pa.schema({"id": pa.int32()})


class SaysNothingOfBadOnes(Lines):
    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        lenient = Lines(self.path, "skip", 99)
        return (replace(part, bad=part.bad.slice(0, 0)) for part in lenient.read(split, guarded=guarded))


class PassesOverLost(Lines):
    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        try:
            yield from super().read(split, guarded=guarded)
        except DataLoss:
            return


class HoldsALock(Lines):
    def __getstate__(self) -> Any:
        raise TypeError("cannot pickle this")
