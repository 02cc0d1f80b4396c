"""What tables have in common as sources of a flow: each is read whole in one epoch, after which it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from onefold.core.positions import TABLE, Positions, Range
from onefold.core.source import Journal, Part, Split
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS

_UNREAD, _READ = 0, 1
_NONE_BAD = empty_batch(BAD_COLUMNS)


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table in parts, which together have each row once. `release` lets go of what was held for them."""

    parts: Sequence[Any]
    release: Callable[[], None] = lambda: None


class TableSource(ABC):
    """A table as a flow's source. A value that cannot be read fails the flow: there are no bad records beside rows."""

    on_error: ClassVar[str] = "fail"
    bad_records_max: ClassVar[int] = 0
    is_of_one_moment: ClassVar[bool] = False  # with it a source is `ReadOnce`
    name: str

    @abstractmethod
    def parts(self, schema: pa.Schema | None = None) -> Sequence[Any]:
        """What tasks read, which together has each row once; with a `schema` its columns, as its types. They pickle."""

    @abstractmethod
    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a part; or an error, at the latest after the last batch: then none of them counts."""

    def planned(self) -> PlannedTable:
        """The parts, for one attempt of the epoch that reads them."""
        return PlannedTable(self.parts())

    def covers(self, name: str) -> bool:
        return name.startswith(f"{TABLE}{self.name}/")

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> TablePlanner:
        del journal
        return TablePlanner(f"{TABLE}{self.name}", self.planned, frozen, until)

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        del guarded  # nothing is parsed
        for rows in self.batches(split.range):
            yield Part(rows, _NONE_BAD)


class TablePlanner:
    """Plans the one epoch that reads a table. Its position is `name/0`: 0 before that epoch, and 1 after it."""

    unit = "table"

    def __init__(
        self, name: str, plan: Callable[[], PlannedTable], frozen: Positions | None, until: Positions | None
    ) -> None:
        self._name, self._plan = name, plan
        self._begin = _UNREAD if frozen is None else self._at(frozen)
        self._end = _READ if until is None else self._at(until)
        self._planned: PlannedTable | None = None

    def initial(self) -> Positions:
        return self._of(self._begin)

    def latest(self, start: Positions) -> Positions:
        return self._of(max(self._at(start), self._end))

    def behind(self, start: Positions) -> Mapping[str, int]:
        return {f"{self._name}/0": int(not self.is_done(start))}

    def end(self, start: Positions) -> Positions:
        return self.latest(start)

    def cut(self) -> Collection[str]:
        return ()

    def splits(self, span: Range) -> list[Split]:
        """Whenever it is asked, the table as it is now: what was planned before is of an attempt that is over."""
        if self._at(span.end) <= self._at(span.start):
            return []
        self.close()
        self._planned = self._plan()
        return [Split(f"{self._name}/{number}", part) for number, part in enumerate(self._planned.parts)]

    def is_done(self, at: Positions) -> bool:
        return self._at(at) >= self._end

    def completed(self, end: Positions) -> None:
        if self._at(end) >= _READ:
            self.close()

    def close(self) -> None:
        planned, self._planned = self._planned, None
        if planned is not None:
            planned.release()

    def _at(self, positions: Positions) -> int:
        at = dict(positions.items).get(f"{self._name}/0", _UNREAD)
        return at if isinstance(at, int) else _UNREAD

    def _of(self, at: int) -> Positions:
        return Positions.of({f"{self._name}/0": at})
