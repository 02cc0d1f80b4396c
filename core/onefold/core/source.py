"""What a replayable source promises a runtime: how far it could go, how a range is split, and a part of it as Arrow.

The driver plans: it asks a `SourcePlanner` where the source ends now, fixes the range of an epoch, and splits it. A
worker reads a split, as often as it is asked to, with the same records each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.positions import Positions, Range

__all__ = [
    "Bounded",
    "BoundedSource",
    "Forgetting",
    "Journal",
    "Keep",
    "MemoryJournal",
    "Part",
    "Placed",
    "ReadOnce",
    "RecordColumns",
    "Recorded",
    "Settled",
    "Source",
    "SourcePlanner",
    "Split",
    "own_positions",
    "read_of",
    "record_columns",
    "settled",
    "unbounded",
]

Keep = Callable[[str, Callable[[], str]], str]
"""Answers with what was found first under a name; asks the function where nothing was (`Session.pin`)."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of an epoch's range that one reader reads, in order: of `partition`, by the source's own `range`.

    `partition` names it as positions do (`orders/0`). `size` is about how much it is, in the unit of the source's own
    limits; 0 where that is unknown. Pickles.
    """

    partition: str
    range: Any
    size: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Some records of a split: the rows of those that could be read, and those that couldn't, as `BAD_COLUMNS`."""

    rows: pa.RecordBatch
    bad: pa.RecordBatch


class Journal(Protocol):
    """Texts that a source's planner keeps beside its positions, for a source whose positions would otherwise grow: a
    position then names such a text. Each source of a pipeline has its own, which its next drivers find again.

    A text is written once under a name that nobody else uses, and never changes: a driver that was taken over may still
    write. Raises `Retriable` where it does not answer."""

    def names(self) -> set[str]:
        """Of all texts that are there."""
        ...

    def read(self, names: Collection[str]) -> dict[str, str]:
        """The texts by their names, without those that are not there."""
        ...

    def write(self, texts: Mapping[str, str]) -> None:
        """Keep the texts, all or none. They outlive a crash once this returns. Of a name that is there, the text is the
        same: the call may come again."""
        ...

    def remove(self, names: Collection[str]) -> None:
        """What is gone already is fine."""
        ...


class MemoryJournal:
    """A journal that lasts as long as the object. Pickles, by its content."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def names(self) -> set[str]:
        return set(self.texts)

    def read(self, names: Collection[str]) -> dict[str, str]:
        return {name: self.texts[name] for name in names if name in self.texts}

    def write(self, texts: Mapping[str, str]) -> None:
        self.texts |= texts

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.texts.pop(name, None)


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

    def covers(self, name: str) -> bool:
        """Whether a position or a mark of this name is of this source: the positions of a flow's sources are kept as
        one value (`own_positions`)."""
        ...

    def resolved(self, keep: Keep) -> Source:
        """The same source with its schema known. Asks the servers where the settings leave it open; the answer may
        change, so it is asked for through `keep`."""
        ...

    def arrow_schema(self) -> pa.Schema:
        """The schema of `Part.rows`, of a source that is resolved. Raises ConfigError for one that is not, and for
        columns that its records cannot be read as."""
        ...

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> SourcePlanner:
        """For one run of a driver. `frozen`: where the pipeline's first batch began, once that is on record. `until`:
        where the source ends; nothing beyond is planned. `journal`: what the planner may keep beside its positions;
        without one, its positions are worth something to this planner alone, where they need a journal."""
        ...

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        """The records of a split. Raises `BadRecord` for the first bad one with `on_error="fail"`, and for the first
        beyond `bad_records_max` otherwise; `DataLoss` where some are gone, `Retriable` where the server doesn't answer.

        `guarded`: for a task that follows one whose process died. What a parser's library dies of is a bad record
        then, at the price of a process for each batch.
        """
        ...


class SourcePlanner(Protocol):
    """The driver's side of a source. Calls raise `Retriable` where a server doesn't answer, `DataLoss` where records
    between the pipeline's positions and the source's end are gone. Positions are the source's own, without others'."""

    unit: str  # what `behind` counts, for people: "record", "file"

    def initial(self) -> Positions:
        """Where a first batch begins, explicit for every partition; the same however often it is asked."""
        ...

    def latest(self, start: Positions) -> Positions:
        """All there is now from `start` on, whatever the limits."""
        ...

    def behind(self, start: Positions) -> Mapping[str, int]:
        """How much there is to read from `start` on, by partition. Changes nothing, and plans nothing."""
        ...

    def end(self, start: Positions) -> Positions:
        """Where an epoch from `start` on may end now: what there is, as far as the source's own limits (records,
        bytes, rate) let. Equal to `start` where there is nothing to read yet, or the rate says to wait."""
        ...

    def cut(self) -> Collection[str]:
        """The partitions of which the last `end` left something that it saw, for a limit: of all others that was all
        there was. A partition that is not among them, and has nothing in the range, is idle. Asks no server."""
        ...

    def splits(self, span: Range) -> Sequence[Split]:
        """The parts of a range, one or more for each partition that has records in it; also for a range that was
        planned before a restart."""
        ...

    def is_done(self, at: Positions) -> bool:
        """Whether the source has an end, and nothing comes after `at`. Always False for one that goes on."""
        ...

    def completed(self, end: Positions) -> None:
        """Told after each complete epoch; a source may show the position elsewhere, in a consumer group for one."""
        ...

    def close(self) -> None:
        """Let go of what is open, and end what `completed` has begun. One that is asked again opens it anew."""
        ...


@runtime_checkable
class Settled(Source, Protocol):
    """A source whose begin is a setting of the user's, which a flow's first start settles for good."""

    @property
    def starting_text(self) -> str:
        """The setting, in the user's words; "ledger" is where the flow stands."""
        ...

    def added(self, known: Positions) -> Positions:
        """Where that begins which the settings name and `known` has nothing of, as a topic that was added later. Empty
        where nothing is."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """What a source has beside `Source`, if it may have positions in partitions which it reads no more."""

    def reads(self, name: str) -> bool:
        """Whether records may still come from the partition that positions name so."""
        ...


@runtime_checkable
class Bounded(Source, Protocol):
    """A source that can be read up to where it ends now, and no further."""

    def bounded(self) -> Source:
        """The same source, ending where it ends at a flow's first start: when it is resolved."""
        ...


@runtime_checkable
class Placed(Source, Protocol):
    """A source that reads what lies in a folder."""

    @property
    def is_local(self) -> bool:
        """Whether the folder is one of this machine's."""
        ...

    def check_apart(self, root: str, own: str) -> None:
        """Raise ConfigError where it would read what a pipeline keeps in the folder or file `root`, of this machine or
        a URL; or where it reads what lies in `own`, the pipeline's own place within."""
        ...


@runtime_checkable
class ReadOnce(Source, Protocol):
    """A source that is read whole in one epoch, after which it is done, and that nobody can read again as it was: an
    epoch that was not decided reads it as it is then. So it is refused beside a sink that writes through."""

    @property
    def is_of_one_moment(self) -> bool:
        """Whether the splits of one plan show it at one moment, and again the same until the planner plans anew or is
        told that the epoch is complete. Otherwise each record is of the moment at which it is read."""
        ...


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of a source's rows that say which record each is.

    place    those that name the record's partition, and last the one with its number there; empty where the rows do not
             say it. Rows of one partition come in the order of these numbers, with each number once
    key      its key; None where the rows have none
    headers  its headers, a list of structs of `key` and `value`
    """

    place: tuple[str, ...] = ()
    key: str | None = None
    headers: str | None = None


@runtime_checkable
class Recorded(Protocol):
    """What a source has beside `Source`, if its rows may say which record each is."""

    def record_columns(self) -> RecordColumns: ...


@dataclass(frozen=True)
class BoundedSource:
    """A source up to where it ended when it was resolved; before that, it has no planner."""

    source: Source
    until: Positions | None = None

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def on_error(self) -> str:
        return self.source.on_error

    @property
    def bad_records_max(self) -> int:
        return self.source.bad_records_max

    def covers(self, name: str) -> bool:
        return self.source.covers(name)

    def resolved(self, keep: Keep) -> BoundedSource:
        source = self.source.resolved(keep)

        def ends() -> str:
            planner = source.planner()
            try:
                return planner.latest(planner.initial()).to_json()
            finally:
                planner.close()

        until = Positions.from_json(keep(f"end of {self.name}"[:100], ends))
        return replace(self, source=source, until=until)

    def arrow_schema(self) -> pa.Schema:
        return self.source.arrow_schema()

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> SourcePlanner:
        end = present(self.until, "a bounded source is resolved before it is planned")
        return self.source.planner(frozen, end if until is None else until, journal)

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        return self.source.read(split, guarded=guarded)


def unbounded(source: Source) -> Source:
    """What a bounded source reads up to its end; any other as it is."""
    return source.source if isinstance(source, BoundedSource) else source


def settled(source: Source) -> Settled | None:
    """The source, where its begin is a setting; None where it is not."""
    inner = unbounded(source)
    return inner if isinstance(inner, Settled) else None


def read_of(source: Source, positions: Positions) -> tuple[str, ...]:
    """The partitions that the source's own positions name, and that it reads."""
    inner = unbounded(source)
    return tuple(name for name, _ in positions.items if not isinstance(inner, Forgetting) or inner.reads(name))


def record_columns(source: Source) -> RecordColumns:
    """What the source's rows say of their records."""
    inner = unbounded(source)
    return inner.record_columns() if isinstance(inner, Recorded) else RecordColumns()


def own_positions(source: Source, positions: Positions) -> Positions:
    """The positions of one source among those of all, with their marks."""
    return Positions.of(
        {name: at for name, at in positions.items if source.covers(name)},
        {name: mark for name, mark in positions.marks if source.covers(name)},
    )
