"""`check_source`: what the author of a source runs."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onefold.core.errors import BadRecord, DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.source import Journal, MemoryJournal, Part, ReadOnce, Source, SourcePlanner, Split
from onefold.core.testing.conformance.promises import Book, CheckedPromise, ConformanceReport, ProcessEnded, Promise
from onefold.core.testing.conformance.report import passed
from onefold.core.writing.dead_letters import BAD_COLUMNS

PUT = 10  # records at a time
RANGES_MAX = 1000

MakeSource = Callable[[str, int], Source]
Rows = list[tuple[str, list[dict[str, Any]]]]  # of each split, by its partition


def check_source(
    make_source: MakeSource,
    put: Callable[[Sequence[int]], None],
    *,
    lose: Callable[[], None] | None = None,
    spoil: Callable[[], None] | None = None,
    id_column: str = "id",
) -> ConformanceReport:
    """Hold a source's every promise against real records, in this process and in others.

    - `make_source(on_error, bad_records_max)` makes the source, which reads the same place each time; nothing is there
      yet. It may limit its epochs to some records (then there are more of them), but not to a rate.
    - `put` adds records with these ids, which `id_column` of its rows shows, to the place.
    - `lose` takes away all records that are there. Without it, it goes unchecked that this is noticed.
    - `spoil` adds one record that cannot be read. Without it, bad records go unchecked: for a source that has none.

    Of a source that is `ReadOnce`, other promises are checked: that nobody can read it again is its nature.

    Raises BrokenPromise, an AssertionError, at the first promise that does not hold; its text says which, what was
    expected, and what was seen. Processes are spawned: a script needs its `if __name__ == "__main__"`.
    """
    begun_s = time.monotonic()
    book = Book()
    subject = _Subject(make_source, put, book, id_column)
    with book.holding(Promise.SOURCE_PICKLES, "pickle") as held:
        held.expect(_again(subject.source).name == subject.source.name, "the source as it was", "another name")
    due = {promise for promise in Promise if promise.name.startswith("SOURCE_")}
    if isinstance(subject.source, ReadOnce):
        _read_once(subject, subject.source)
        due -= {Promise.SOURCE_REPLAY, Promise.SOURCE_RESTART, Promise.SOURCE_BAD, Promise.SOURCE_LOST}
    else:
        _planned(subject)
        _read(subject)
        _bounded(subject)
        if spoil is not None:
            _spoilt(subject, spoil)
        if lose is not None:
            _lost(subject, lose)
        due -= {Promise.SOURCE_ONCE}
        due -= set() if spoil is not None else {Promise.SOURCE_BAD}
        due -= set() if lose is not None else {Promise.SOURCE_LOST}
    name = f"{type(subject.source).__name__} {subject.source.name!r}"
    return passed(name, book, due, time.monotonic() - begun_s)


@dataclass
class _Subject:
    """The source, and what was put and planned so far."""

    make: MakeSource
    _put: Callable[[Sequence[int]], None]
    book: Book
    id_column: str
    count: int = 0
    ranges: list[Range] = field(default_factory=list)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    source: Source = field(init=False)

    def __post_init__(self) -> None:
        self.put()  # before the source is made: it may look at records for its schema
        self.source = self.made("fail", 0)

    def made(self, on_error: str, bad_records_max: int) -> Source:
        return self.make(on_error, bad_records_max).resolved(lambda _, find: find())

    def planner(self, frozen: Positions | None = None, until: Positions | None = None) -> SourcePlanner:
        return self.source.planner(frozen, until, self.journal)

    def put(self) -> None:
        self._put(range(self.count, self.count + PUT))
        self.count += PUT

    @property
    def begin(self) -> Positions:
        return self.ranges[0].start

    @property
    def at(self) -> Positions:
        return self.ranges[-1].end

    def ids(self, rows: Rows) -> list[Any]:
        return [row[self.id_column] for _, some in rows for row in some]

    def expect_once(self, held: CheckedPromise, rows: Rows, wanted: Sequence[int]) -> None:
        found = Counter(self.ids(rows))
        lost = [number for number in wanted if not found[number]]
        others = sorted((found - Counter(wanted)).elements(), key=str)
        held.expect(not lost and not others, f"each of {len(wanted)} records once", f"lost {lost}, beyond {others}")


def _read_once(subject: _Subject, source: ReadOnce) -> None:
    book, planner = subject.book, subject.planner()
    begin = _begun(subject, planner)
    with book.holding(Promise.SOURCE_END, "end") as held:
        end = planner.end(begin)
        held.expect(end != begin, "an epoch of the records that there are", f"end({begin}) is the same")
        held.expect(planner.latest(begin) == end, f"the latest, {end}", planner.latest(begin))
    with book.holding(Promise.SOURCE_CUT, "cut") as held:
        held.expect(not planner.cut(), "nothing where all was planned", planner.cut())
    _counted(subject, planner, begin, end)
    with book.holding(Promise.SOURCE_UNTIL, "end, is_done") as held:
        held.expect(not planner.is_done(begin) and planner.is_done(end), f"done at {end}", "otherwise")
        ended = subject.planner(begin, begin)
        held.expect(ended.is_done(begin) and ended.end(begin) == begin, f"done at {begin}", "it goes on")
    splits, count = planner.splits(Range(begin, end)), subject.count
    with book.holding(Promise.SOURCE_SCHEMA, "read") as held:
        for part in _parts(source, splits):
            held.expect(part.rows.schema == source.arrow_schema(), str(source.arrow_schema()), part.rows.schema)
            held.expect(part.bad.schema == BAD_COLUMNS, "BAD_COLUMNS", part.bad.schema)
    with book.holding(Promise.SOURCE_SPLITS, "splits") as held:
        strange = [split.partition for split in splits if not source.covers(split.partition)]
        held.expect(not strange, "partitions of the source", strange)
        subject.expect_once(held, _elsewhere(_rows, source, splits), range(count))
    with book.holding(Promise.SOURCE_ONCE, "splits, read") as held:
        subject.put()
        if source.is_of_one_moment:
            subject.expect_once(held, _elsewhere(_rows, source, splits), range(count))
        again = planner.splits(_stored(Range(begin, end)))
        subject.expect_once(held, _rows(source, again), range(subject.count))
        planner.completed(end)
        subject.put()
        held.expect(planner.end(end) == end, f"nothing after {end}", planner.end(end))
        held.expect(not planner.splits(Range(end, end)), "no split of an empty range", "some")
    planner.close()


def _begun(subject: _Subject, planner: SourcePlanner) -> Positions:
    """Where a first batch begins. There are more records afterwards."""
    source = subject.source
    with subject.book.holding(Promise.SOURCE_INITIAL, "initial") as held:
        begin = planner.initial()
        subject.put()
        others = (
            source.planner(begin, journal=subject.journal),
            _again(source).planner(begin, journal=subject.journal),
        )
        again = [planner.initial(), *(other.initial() for other in others)]
        held.expect(all(each == begin for each in again), str(begin), again)
    return begin


def _counted(subject: _Subject, planner: SourcePlanner, begin: Positions, end: Positions) -> None:
    """All there is lies between these."""
    with subject.book.holding(Promise.SOURCE_BEHIND, "behind") as held:
        unit = getattr(planner, "unit", None)
        held.expect(isinstance(unit, str) and bool(unit), "a unit, as 'record'", f"the unit {unit!r}")
        there, none = planner.behind(begin), planner.behind(end)
        strange = [name for name in there if not subject.source.covers(name)]
        held.expect(not strange, "partitions of the source", strange)
        held.expect(sum(there.values()) > 0, "a number above 0 before all was read", there)
        held.expect(not any(none.values()), "0 after that", none)


def _planned(subject: _Subject) -> None:
    book, planner = subject.book, subject.planner()
    begin = _begun(subject, planner)
    with book.holding(Promise.SOURCE_END, "end") as held:
        subject.ranges += _ranges(planner, begin)
        held.expect(bool(subject.ranges), "an epoch of the records that there are", f"end({begin}) is the same")
        subject.put()
        subject.ranges += _ranges(planner, subject.at)
        latest = planner.latest(subject.at)
        held.expect(subject.at == latest, f"the latest, {latest}", subject.at)
        held.expect(planner.end(subject.at) == subject.at, "the same where nothing came", planner.end(subject.at))
    _counted(subject, planner, begin, subject.at)
    with book.holding(Promise.SOURCE_CUT, "cut") as held:
        subject.put()
        at, end = subject.at, planner.end(subject.at)
        while end != at:
            left = sorted(name for name, count in planner.behind(end).items() if count)
            held.expect(sorted(planner.cut()) == left, f"{left} after end({at})", planner.cut())
            subject.ranges.append(Range(at, end))
            at, end = end, planner.end(end)
        held.expect(not planner.cut(), "nothing where all was planned", planner.cut())


def _read(subject: _Subject) -> None:
    source, book = subject.source, subject.book
    planner = subject.planner(subject.begin)
    splits = [split for span in subject.ranges for split in planner.splits(span)]
    with book.holding(Promise.SOURCE_SCHEMA, "read") as held:
        for part in _parts(source, splits):
            held.expect(part.rows.schema == source.arrow_schema(), str(source.arrow_schema()), part.rows.schema)
            held.expect(part.bad.schema == BAD_COLUMNS, "BAD_COLUMNS", part.bad.schema)
    with book.holding(Promise.SOURCE_SPLITS, "splits") as held:
        strange = [split.partition for split in splits if not source.covers(split.partition)]
        held.expect(not strange, "partitions of the source", strange)
        first = _rows(source, splits)
        subject.expect_once(held, first, range(subject.count))
    with book.holding(Promise.SOURCE_REPLAY, "read") as held:
        held.expect(_rows(source, splits) == first, "the same rows again", "others, or in another order")
        elsewhere = _elsewhere(_rows, source, splits)
        held.expect(elsewhere == first, "the same rows in another process", "others, or in another order")
    with book.holding(Promise.SOURCE_RESTART, "splits") as held:
        for span in subject.ranges:
            again = _again(source).planner(subject.begin, journal=subject.journal)
            before, now = planner.splits(span), again.splits(_stored(span))
            held.expect(list(before) == list(now), f"the splits {before}", now)


def _bounded(subject: _Subject) -> None:
    until, count = subject.at, subject.count
    subject.put()
    planner = subject.planner(subject.begin, until)
    with subject.book.holding(Promise.SOURCE_UNTIL, "end, is_done") as held:
        held.expect(not planner.is_done(subject.begin), "not done at its beginning", "is_done")
        ranges = _ranges(planner, subject.begin)
        held.expect(planner.is_done(ranges[-1].end), f"done at {until}", f"not done at {ranges[-1].end}")
        rows = _rows(subject.source, [split for span in ranges for split in planner.splits(span)])
        subject.expect_once(held, rows, range(count))
    _go_on(subject)


def _spoilt(subject: _Subject, spoil: Callable[[], None]) -> None:
    first = subject.count
    subject.put()
    spoil()
    subject.put()
    _go_on(subject)
    splits = subject.planner(subject.begin).splits(subject.ranges[-1])
    with subject.book.holding(Promise.SOURCE_BAD, "read") as held:
        for on_error, bad_max in (("fail", PUT), ("dead_letter", 0), ("skip", 0)):
            refusing = subject.made(on_error, bad_max)
            what = f"BadRecord with on_error={on_error!r} and bad_records_max={bad_max}"
            held.expect_raises(BadRecord, lambda refusing=refusing: _rows(refusing, splits), what)
        for on_error in ("dead_letter", "skip"):
            source = subject.made(on_error, 1)
            parts = _parts(source, splits)
            bad = [row for part in parts for row in part.bad.to_pylist()]
            held.expect(len(bad) == 1 and bool(bad[0]["reason"]), "one bad record, with its reason", bad)
            subject.expect_once(held, _rows(source, splits), range(first, subject.count))


def _lost(subject: _Subject, lose: Callable[[], None]) -> None:
    subject.put()
    _go_on(subject)
    lose()
    with subject.book.holding(Promise.SOURCE_LOST, "splits, read") as held:
        what = "DataLoss for records that were planned and are gone"
        held.expect_raises(
            DataLoss,
            lambda: _elsewhere(_replanned, subject.source, (subject.journal, subject.begin, subject.ranges[-1])),
            what,
        )


def _go_on(subject: _Subject) -> None:
    """One range more, of all there is by now."""
    planner = subject.planner(subject.begin)
    subject.ranges.append(Range(subject.at, planner.latest(subject.at)))


def _ranges(planner: SourcePlanner, at: Positions) -> list[Range]:
    """Epoch after epoch, until nothing more comes."""
    found: list[Range] = []
    while (end := planner.end(at)) != at:
        found.append(Range(at, end))
        at = end
        if len(found) > RANGES_MAX:
            raise AssertionError(f"{RANGES_MAX} epochs do not come to an end: {found[-1]}")
    return found


def _parts(source: Source, splits: Sequence[Split]) -> list[Part]:
    return [part for split in splits for part in source.read(split)]


def _rows(source: Source, splits: Sequence[Split]) -> Rows:
    schema = source.arrow_schema()
    return [
        (split.partition, pa.Table.from_batches([part.rows for part in source.read(split)], schema).to_pylist())
        for split in splits
    ]


def _replanned(source: Source, planned: tuple[Journal, Positions, Range]) -> Rows:
    journal, begin, span = planned
    return _rows(source, source.planner(begin, journal=journal).splits(span))


def _stored(span: Range) -> Range:
    """The range as it comes back from a store."""
    return Range(Positions.from_json(span.start.to_json()), Positions.from_json(span.end.to_json()))


def _again(source: Source) -> Source:
    found: Source = pickle.loads(pickle.dumps(source))
    return found


def _elsewhere(call: Callable[[Source, Any], Rows], source: Source, argument: object) -> Rows:
    """The call in a process of its own, that has read nothing before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            asked = pool.submit(call, source, argument)
        except RuntimeError:  # in such a process, while it imports the script
            raise ProcessEnded from None
        try:
            return asked.result()
        except BrokenProcessPool:
            raise ProcessEnded from None
