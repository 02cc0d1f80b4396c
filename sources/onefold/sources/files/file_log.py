"""The log of the files that a source has read: its positions name entries of it, and stay small.

A position is `<files>:<digest>`: how many files the log has there, and which *index*. An index is a text of the
source's journal that names *segments*, other texts, with the files themselves: `new` are those of the epoch that ends
there, `old` those before. All names are digests of the texts, so a position covers each file that it stands for: what
is missing, cut, edited or another source's is found, and refused.

Eight segments of about one size become one, eight times as large, so an epoch costs what its own files cost, however
many were read before. An index is written before the epoch opens that ends there; one whose epoch never opens is a
leftover. Each text has a token of its writer in it: a driver that was taken over writes under other names.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onefold.core.errors import DataLoss, OnefoldError
from onefold.core.source import Journal
from onefold.core.values.remedies import RESET

SEGMENT_FILES = 1 << 12  # as many a segment has at most: with long paths still less than MariaDB takes, 16 MB
MERGE = 8  # segments of about one size become one
KEPT = 20  # positions behind the last complete one that can still be asked for, and as many again
GONE_KEPT = 100_000  # files that were read and are gone; as many again until they are forgotten together

_WHAT_TO_DO = (
    "Restore the checkpoint store from a copy that is as new as the tables; or accept that all files that are there are"
    f" read again: {RESET}"
)


class Entry(NamedTuple):
    """A file by its whole path, as it was when it was planned. `mark` has the checksums of its first and last
    content, empty where none were taken. `was` is the path that it was read under, where that was another one."""

    path: str
    version: str
    mark: str = ""
    was: str = ""


Named = tuple[str, int]  # a segment, and how many files it has


@dataclass(frozen=True, slots=True)
class Index:
    """`base` is the source's folder at that time; `ends` are the files that end a bounded source, with those before."""

    before: str = ""
    base: str = ""
    old: tuple[Named, ...] = ()
    new: tuple[Named, ...] = ()
    ends: tuple[Named, ...] | None = None

    @property
    def segments(self) -> tuple[Named, ...]:
        return self.old + self.new

    @property
    def all(self) -> set[str]:
        return {name for name, _ in (*self.segments, *(self.ends or ()))}

    @classmethod
    def of(cls, text: str) -> Index:
        values = json.loads(text)

        def named(key: str) -> tuple[Named, ...]:
            return tuple((name, count) for name, count in values[key])

        ends = None if values["ends"] is None else named("ends")
        return cls(values["before"], values["base"], named("old"), named("new"), ends)


@dataclass(slots=True)
class LogStanding:
    """A position, and what the log has there: all files that were read, by their paths, in about the order in which
    they were."""

    position: str = ""
    index: Index = field(default_factory=Index)
    segments: dict[str, list[Entry]] = field(default_factory=dict)
    known: dict[str, Entry] = field(default_factory=dict)
    added: list[Entry] = field(default_factory=list)  # what `known` does not have yet

    @property
    def new(self) -> list[Entry]:
        """The files of the epoch that ends here."""
        return [entry for name, _ in self.index.new for entry in self.segments[name]]

    @property
    def ends(self) -> list[Entry] | None:
        """The files that end a bounded source, without those before; None for one that goes on."""
        return (
            None if self.index.ends is None else [entry for name, _ in self.index.ends for entry in self.segments[name]]
        )


class FileLog:
    """Reads and extends the log of one source."""

    def __init__(self, journal: Journal, source: str) -> None:
        self._journal, self._source = journal, source
        self._token = uuid.uuid4().hex
        self._at = LogStanding()
        self._planned: LogStanding | None = None
        self._written: set[str] = set()  # by this driver
        self._leftovers: set[str] | None = None  # of drivers before this one
        self._kept: deque[tuple[str, set[str]]] = deque()  # complete indexes, with their segments

    def at(self, position: str) -> LogStanding:
        """What the log has there; "" is its beginning. Raises DataLoss where that is not whole."""
        if self._planned is not None and self._planned.position == position:
            self._at, self._planned = self._planned, None
            self._at.known.update((entry.path, entry) for entry in self._at.added)
            self._at.added = []
        if self._at.position != position:
            self._at, self._planned = self._loaded(position), None
        if self._leftovers is None:
            self._leftovers = self._journal.names()
        return self._at

    def extended(
        self,
        at: LogStanding,
        base: str,
        new: Sequence[Entry],
        moved: Sequence[Entry],
        there: Collection[str],
        ends: Sequence[Entry] | None,
    ) -> str:
        """The position after these files, which is in the journal by then. `moved` were read by other paths; `there`
        are the paths of all files that there are; `ends` says anew what ends a bounded source."""
        texts: dict[str, str] = {}
        segments = dict(at.segments)

        def write(entries: Iterable[Entry]) -> Iterator[Named]:
            whole = list(entries)
            for first in range(0, len(whole), SEGMENT_FILES):
                some = whole[first : first + SEGMENT_FILES]
                name = self._named(texts, {"base": base, "files": [_within(base, entry) for entry in some]})
                segments[name] = some
                yield name, len(some)

        if len(at.known) - len(there) > 2 * GONE_KEPT:
            _forget(at.known, there)
            old = [*write((*at.known.values(), *moved))]
        else:
            old = [*at.index.segments, *write(moved)]
        while (some := _to_merge(old)) is not None:
            merged = write(entry for name, _ in some for entry in segments[name])
            old = [named for named in old if named not in some] + [*merged]
        ended = at.index.ends if ends is None else tuple(write(ends))
        index = Index(at.position, base, tuple(old), tuple(write(new)), ended)
        values = {key: getattr(index, key) for key in ("before", "base", "old", "new", "ends")}
        digest = self._named(texts, values)
        self._journal.write(texts)
        self._written.update(texts)
        kept = {name: entries for name, entries in segments.items() if name in index.all}
        count = sum(files for _, files in index.segments)
        self._planned = LogStanding(f"{count}:{digest}", index, kept, at.known, [*moved, *new])
        return self._planned.position

    def look(self, position: str) -> LogStanding:
        """What the log has there, for one look."""
        known = next((of for of in (self._planned, self._at) if of is not None and of.position == position), None)
        return self._loaded(position) if known is None else known

    def new_of(self, start: str, end: str) -> list[Entry]:
        """The files between two positions. Raises DataLoss where the log does not have them."""
        found: list[Entry] = []
        while end != start:
            if not end:
                raise DataLoss(
                    "file-log-foreign",
                    f"{self._name} does not lead from {start} to the position that the epoch ends at. {_WHAT_TO_DO}",
                )
            standing = self.look(end)
            found = standing.new + found
            end = standing.index.before
        return found

    def completed(self, position: str) -> None:
        """The epoch that ends there is complete: what no position asks for any more may go. Changes nothing where the
        journal does not answer: the next call removes it."""
        if self._leftovers is None or position not in (self._at.position, self._planned and self._planned.position):
            return
        index = self.look(position).index
        self._kept.append((position, index.all))
        is_first = len(self._kept) == 1
        if not is_first and len(self._kept) < 2 * KEPT:
            return
        try:
            if is_first:
                self._keep_before(index)
            while len(self._kept) > KEPT:
                self._kept.popleft()
            standing = [of for of in (self._at, self._planned) if of is not None]  # one may be ahead of the epoch
            kept = [*self._kept, *((of.position, of.index.all) for of in standing)]
            needed = {name for at, names in kept for name in (*names, _digest_of(at))}
            if useless := (self._leftovers | self._written) - needed:
                self._journal.remove(useless)
                self._leftovers -= useless
                self._written -= useless
        except OnefoldError:
            return

    def _keep_before(self, index: Index) -> None:
        """Positions before the first one of this driver, as far as they are there."""
        while index.before and len(self._kept) < KEPT:
            digest = _digest_of(index.before)
            text = self._journal.read([digest]).get(digest)
            if text is None:
                return
            at, index = index.before, Index.of(text)
            self._kept.appendleft((at, index.all))

    def _loaded(self, position: str) -> LogStanding:
        if not position:
            return LogStanding()
        digest = _digest_of(position)
        try:
            index = Index.of(self._texts([digest])[digest])
            known = self._at.segments  # a segment never changes
            segments = {name: known[name] for name in index.all if name in known}
            segments |= {name: _entries(text) for name, text in self._texts(index.all - segments.keys()).items()}
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(digest) from error
        files = {entry.path: entry for name, _ in index.segments for entry in segments[name]}
        return LogStanding(position, index, segments, files)

    def _texts(self, names: Collection[str]) -> Mapping[str, str]:
        found = self._journal.read(names)
        for name in names:
            if name not in found:
                raise DataLoss(
                    "file-log-missing",
                    f"{self._name} does not have {name}, which the pipeline's positions name. {_WHAT_TO_DO}",
                )
            if _digest(found[name]) != name:
                raise self._damaged(name)
        return found

    def _damaged(self, name: str) -> DataLoss:
        return DataLoss(
            "file-log-damaged",
            f"{self._name} has {name}, which the pipeline's positions name, not as it was written. {_WHAT_TO_DO}",
        )

    @property
    def _name(self) -> str:
        return f"the log of the files that the source {self._source!r} has read, onefold_journals in the store,"

    def _named(self, texts: dict[str, str], values: Mapping[str, object]) -> str:
        text = json.dumps({"by": self._token, "source": self._source, **values}, separators=(",", ":"))
        texts[_digest(text)] = text
        return _digest(text)


def _to_merge(segments: Sequence[Named]) -> list[Named] | None:
    """As many segments of about one size as become one; None where there are not so many."""
    sizes: dict[int, list[Named]] = {}
    for named in segments:
        if named[1] < SEGMENT_FILES:
            some = sizes.setdefault((max(named[1], 1).bit_length() - 1) // 3, [])  # powers of eight
            some.append(named)
            if len(some) == MERGE:
                return some
    return None


def _forget(known: dict[str, Entry], there: Collection[str]) -> None:
    """All files that are gone but the last ones that were read."""
    gone = [path for path in known if path not in there]
    for path in gone[:-GONE_KEPT]:
        del known[path]


def _within(base: str, entry: Entry) -> list[str]:
    """An entry as a segment has it: its path within the folder, where it is there."""
    path = entry.path
    return [path[len(base) + 1 :] if path.startswith(f"{base}/") else f"/{path}", *(how for how in entry[1:] if how)]


def _entries(text: str) -> list[Entry]:
    values = json.loads(text)
    base = values["base"]
    return [Entry(path[1:] if path.startswith("/") else f"{base}/{path}", *how) for path, *how in values["files"]]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest_of(position: str) -> str:
    return position.rpartition(":")[2]
