"""What a replayable source promises a runtime: how far it could go, how a range is split, and a part of it as Arrow.

The driver plans: it asks a `SourcePlanner` where the source ends now, fixes the range of an epoch, and splits it. A
worker reads a split, as often as it is asked to, with the same records each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from onefold.core.positions import Positions, Range

__all__ = ["Bounded", "Part", "Source", "SourcePlanner", "Split"]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of an epoch's range that one reader reads, in order: of `partition`, by the source's own `range`.

    `partition` names it as positions do (`orders/0`). `size` is about how many records it has; 0 where that is
    unknown. Pickles.
    """

    partition: str
    range: Any
    size: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Some records of a split: the rows of those that could be read, and those that couldn't, as `BAD_COLUMNS`."""

    rows: pa.RecordBatch
    bad: pa.RecordBatch


class Source(Protocol):
    """Where records come from, as a user names it. Pickles, and opens its connections when they are needed."""

    @property
    def name(self) -> str:
        """For people, and unique among a flow's sources."""
        ...

    @property
    def on_error(self) -> str:
        """What becomes of a record that cannot be read: "fail", "dead_letter" or "skip"."""
        ...

    @property
    def bad_records_max(self) -> int:
        """More bad records than this in one epoch stop the pipeline."""
        ...

    def resolved(self) -> Source:
        """The same source with its schema known. Asks the servers where the settings leave it open; the answer may
        change, so a pipeline keeps the first one."""
        ...

    def schema(self) -> pa.Schema:
        """The schema of `Part.rows`, of a source that is resolved. Raises ConfigError for one that is not."""
        ...

    def planner(self, frozen: Positions | None = None) -> SourcePlanner:
        """For one run of a driver. `frozen`: where the pipeline's first batch began, once that is on record."""
        ...

    def read(self, split: Split) -> Iterator[Part]:
        """The records of a split. Raises `BadRecord` for the first bad one with `on_error="fail"`, `DataLoss` where
        some are gone, `Retriable` where the server doesn't answer."""
        ...


class SourcePlanner(Protocol):
    """The driver's side of a source. Calls raise `Retriable` where a server doesn't answer, `DataLoss` where records
    between the pipeline's positions and the source's end are gone."""

    def initial(self) -> Positions:
        """Where a first batch begins, explicit for every partition; the same however often it is asked."""
        ...

    def end(self, start: Positions) -> Positions:
        """Where an epoch from `start` on may end now: what there is, as far as the source's own limits (records,
        bytes, rate) let. Equal to `start` where there is nothing to read yet."""
        ...

    def splits(self, span: Range) -> Sequence[Split]:
        """The parts of a range, one for each partition that has records in it; also for a range planned before a
        restart."""
        ...

    def is_done(self, at: Positions) -> bool:
        """Whether the source is bounded and nothing comes after `at`. Always False for one that goes on."""
        ...

    def completed(self, end: Positions) -> None:
        """Told after each complete epoch; a source may show the position elsewhere, in a consumer group for one."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Bounded(Source, Protocol):
    """A source that can be read up to where it ends now, and no further."""

    def bounded(self) -> Source:
        """The same source, ending where it ends at a flow's first start."""
        ...
