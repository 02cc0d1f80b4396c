"""A complete source: numbers in a file that only grows, one on each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from onefold.core import BadRecord, DataLoss, Positions
from onefold.core.positions import Range
from onefold.core.source import Journal, Keep, Part, Split
from onefold.core.writing.dead_letters import BAD_COLUMNS

SCHEMA = pa.schema({"id": pa.int64()})
PARTITION = "lines/0"
EPOCH_MAX = 7  # lines in one epoch: few, so that a short file has several


def at(line: int) -> Positions:
    """A position is a number of lines: those before it are read."""
    return Positions.of({PARTITION: line})


def line_of(positions: Positions) -> int:
    return int(dict(positions.items)[PARTITION])


@dataclass(frozen=True)
class LinesSource:
    """What the user names. It pickles: the driver sends it to the tasks."""

    path: str
    on_error: str = "fail"
    bad_records_max: int = 0
    name: str = "lines"

    def covers(self, name: str) -> bool:
        return name == PARTITION

    def resolved(self, keep: Keep) -> LinesSource:
        return self  # nothing has to be asked for: the schema is known

    def arrow_schema(self) -> pa.Schema:
        return SCHEMA

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> LinesPlanner:
        return LinesPlanner(self, frozen, until)

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        start, end = split.range
        lines = self.lines()[start:end]
        if len(lines) < end - start:
            raise DataLoss("lines-gone", f"{self.path}: lines {start} to {end} were planned, and some are gone")
        bad = [line for line in lines if not line.isdigit()]
        if len(bad) > (self.bad_records_max if self.on_error != "fail" else 0):
            raise BadRecord("line-unreadable", f"{self.path}: {bad[0]!r} is no number")
        rows = [{"id": int(line)} for line in lines if line.isdigit()]
        letters = [{"value": line.encode(), "reason": "no number"} for line in bad]
        yield Part(pa.RecordBatch.from_pylist(rows, SCHEMA), pa.RecordBatch.from_pylist(letters, BAD_COLUMNS))

    def lines(self) -> list[str]:
        """Those that are whole: the last one may be written just now."""
        return Path(self.path).read_text().split("\n")[:-1]


@dataclass
class LinesPlanner:
    """The driver's side. Nothing that counts is kept in it: any driver goes on where another one died."""

    unit = "line"

    source: LinesSource
    frozen: Positions | None
    until: Positions | None
    is_cut: bool = False  # whether the last end left lines that were there

    def initial(self) -> Positions:
        return self.frozen or at(0)

    def latest(self, start: Positions) -> Positions:
        return at(len(self.source.lines()))

    def behind(self, start: Positions) -> Mapping[str, int]:
        return {PARTITION: line_of(self.latest(start)) - line_of(start)}

    def end(self, start: Positions) -> Positions:
        last = self.latest(start) if self.until is None else self.until
        self.is_cut = line_of(start) + EPOCH_MAX < line_of(last)
        return at(min(line_of(start) + EPOCH_MAX, line_of(last)))

    def cut(self) -> list[str]:
        return [PARTITION] if self.is_cut else []

    def splits(self, span: Range) -> list[Split]:
        return [] if span.is_empty else [Split(PARTITION, (line_of(span.start), line_of(span.end)))]

    def is_done(self, at: Positions) -> bool:
        return self.until is not None and line_of(at) >= line_of(self.until)

    def completed(self, end: Positions) -> None:
        return

    def close(self) -> None:
        return
