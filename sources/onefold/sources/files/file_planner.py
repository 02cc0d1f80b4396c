"""Plans which files an epoch takes: whole files that are new. A position names, in the log, all that were read."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from onefold.core.errors import CheckpointMismatch
from onefold.core.positions import Positions, Range
from onefold.core.source import Journal, MemoryJournal, Split
from onefold.core.values.plain import plain
from onefold.core.values.remedies import RESET
from onefold.sources.files.file_log import Entry, FileLog, LogStanding
from onefold.sources.files.identity import ReadBefore, mark_of
from onefold.sources.files.listing import Folder, ListedFile, changed, gone
from onefold.sources.files.source_options import FileSourceConfig
from onefold.sources.files.splitting import splits_of

log = logging.getLogger("onefold")

HELD_S = 10.0  # what looks like a file that is there: somebody may be about to remove that one
LISTING_S_MIN = 0.1  # a listing that takes longer, and finds nothing, is not repeated before as much time has passed


def position_of(source: str, file: str = "") -> str:
    """What a source is called in positions, or the records of one of its files in splits."""
    return f"#{source}/{file}"


class FilePlanner:
    """Plans epochs of one source. With `is_bounded` it ends with the files that there are when it plans for the first
    time."""

    unit = "file"

    def __init__(
        self,
        source: FileSourceConfig,
        frozen: Positions | None = None,
        until: Positions | None = None,
        journal: Journal | None = None,
        *,
        is_bounded: bool = False,
    ) -> None:
        self._source = source
        self._frozen = frozen
        self._until, self._is_bounded = until, is_bounded
        self._log = FileLog(journal or MemoryJournal(), source.name)
        self._ends: dict[str, str] | None = None  # the files, with their versions, that end it
        self._moved: dict[str, Entry] = {}  # read under other paths
        self._before: ReadBefore | None = None
        self._before_of: Mapping[str, Entry] | None = None
        self._learned = ""  # the position that it knows
        self._held: dict[tuple[str, str], float] = {}  # since when a file is seen as it is
        self._rests_until_s = 0.0
        self._is_cut = False

    @cached_property
    def _folder(self) -> Folder:
        return Folder(self._source.path)

    def initial(self) -> Positions:
        return Positions() if self._frozen is None else self._frozen

    def latest(self, start: Positions) -> Positions:
        return self._planned(start, None, None)[0]

    def behind(self, start: Positions) -> Mapping[str, int]:
        """By their paths: one that was read under another path counts until it is looked into."""
        there = self._folder.list(self._source.pattern)
        return {position_of(self._source.name): len(self._ripe(self._unknown(self._standing(start), there)))}

    def end(self, start: Positions) -> Positions:
        if time.monotonic() < self._rests_until_s:
            return start
        source = self._source
        end, self._is_cut = self._planned(start, source.max_files_per_trigger, source.max_bytes_per_trigger)
        return end

    def cut(self) -> Collection[str]:
        """Also where a file is left that somebody has written to within `settle_s`."""
        return [position_of(self._source.name)] if self._is_cut else []

    def splits(self, span: Range) -> list[Split]:
        found = []
        for entry in self._log.new_of(self._position(span.start), self._position(span.end)):
            file = self._folder.check_same(self._name(entry.path), entry.version)
            position = position_of(self._source.name, file.name)
            found += [Split(position, part, size) for part, size in splits_of(self._source, self._folder, file)]
        return found

    def is_done(self, at: Positions) -> bool:
        known, ends = self._standing(at).known, self._ends
        return ends is not None and all(path in known or path in self._moved for path in ends)

    def completed(self, end: Positions) -> None:
        self._log.completed(self._position(end))

    def close(self) -> None:
        self.__dict__.pop("_folder", None)

    def _planned(self, start: Positions, files_max: int | None, bytes_max: int | None) -> tuple[Positions, bool]:
        """The end, and whether files are left that are there."""
        at = self._standing(start)
        begun_s = time.monotonic()
        base = self._folder.base
        there = self._folder.list(self._source.pattern)
        listing_s = time.monotonic() - begun_s
        unknown = self._unknown(at, there)
        new = self._ripe(unknown)
        if self._is_bounded and self._ends is None:
            self._ends = {path: file.version for path, file in new.items()}
            if len(new) < len(unknown):
                left = next(file.name for path, file in unknown.items() if path not in new)
                log.warning("%s is left out, like all that was written within settle_s", self._folder.shown(left))
        is_cut = self._ends is None and len(new) < len(unknown)
        if self._ends is not None:
            new = self._of_the_end(at, there, new)
        taken, is_limited = self._within_limits(self._not_read(at, there, new), files_max, bytes_max)
        is_cut |= is_limited
        if not taken:
            self._rests_until_s = time.monotonic() + listing_s if listing_s > LISTING_S_MIN else 0.0
            return start, is_cut
        self._moved = {path: entry for path, entry in self._moved.items() if path not in at.known}
        ends = None
        if self._is_bounded and at.index.ends is None:
            ends = [Entry(path, version) for path, version in (self._ends or {}).items()]
        position = self._log.extended(at, base, taken, [*self._moved.values()], there.keys(), ends)
        return Positions.of({position_of(self._source.name): position}), is_cut

    def _standing(self, positions: Positions) -> LogStanding:
        """What was read up to there. Raises CheckpointMismatch where that was another folder's."""
        at = self._log.at(self._position(positions))
        base, now = f"{at.index.base}/", f"{self._folder.base}/"
        is_near = not at.index.base or now.startswith(base) or base.startswith(now)
        if not is_near and not any(path.startswith(now) for path in at.known):
            raise self._elsewhere(at.index.base)
        if self._is_bounded and self._ends is None and at.ends is not None:
            self._ends = {entry.path: entry.version for entry in at.ends}
        if self._until is not None and self._ends is None:
            known = self._log.look(self._position(self._until))
            self._ends = {entry.path: entry.version for entry in (*known.known.values(), *known.added)}
        return at

    def _unknown(self, at: LogStanding, there: Mapping[str, ListedFile]) -> dict[str, ListedFile]:
        """The files whose paths were not read. Raises DataLoss where one has changed since it was."""
        found = {}
        for path, file in there.items():
            known = at.known.get(path) or self._moved.get(path)
            if known is None:
                found[path] = file
            elif known.version != file.version:
                raise changed(self._folder.shown(file.name), known.version, file.version)
        return found

    def _ripe(self, files: Mapping[str, ListedFile]) -> dict[str, ListedFile]:
        """Those that nobody has written to for `settle_s`: by their times, or, since clocks differ, by what was seen
        here. What is none of them any more is forgotten."""
        self._held = {seen: since_s for seen, since_s in self._held.items() if seen[0] in files}
        if not self._source.settle_s:
            return dict(files)
        ripe_ns = time.time_ns() - int(self._source.settle_s * 1e9)
        return {
            path: file
            for path, file in files.items()
            if file.modified_ns <= ripe_ns or self._is_held(path, file) >= self._source.settle_s
        }

    def _of_the_end(
        self, at: LogStanding, there: Mapping[str, ListedFile], new: Mapping[str, ListedFile]
    ) -> dict[str, ListedFile]:
        """Those of the files that end it. Raises DataLoss where one of these is gone, or has changed."""
        wanted = {}
        for path, version in (self._ends or {}).items():
            if path in at.known or path in self._moved:
                continue
            if path not in there:
                raise gone(plain(path))
            if there[path].version != version:
                raise changed(self._folder.shown(there[path].name), version, there[path].version)
            wanted[path] = new.get(path, there[path])
        return wanted

    def _not_read(
        self, at: LogStanding, there: Mapping[str, ListedFile], new: Mapping[str, ListedFile]
    ) -> Iterator[tuple[Entry, ListedFile]]:
        """Those that were not read under another path either, the oldest first."""
        if not new:
            return
        packs, before = self._source.format != "parquet", self._read_before(at)
        before.see(there.keys())
        for path, file in sorted(new.items(), key=lambda item: (item[1].modified_ns, item[1].name)):
            mark = mark_of(self._folder, file.name, may_be_packed=packs)
            entry, alike = Entry(path, file.version, mark), before.alike(path, file, mark)
            if alike is None:
                yield entry, file
            elif not self._folder.is_local:
                if before.is_gone(alike):
                    log.warning("%s may be %s, which was read and is gone: it is read", plain(path), plain(alike.path))
                yield entry, file
            elif before.is_gone(alike):
                self._moved[path] = entry._replace(was=alike.path)
                before.learn([self._moved[path]])
                log.info("%s was read as %s, and is not read again", plain(path), plain(alike.path))
            elif self._is_held(path, file) >= HELD_S:
                yield entry, file

    def _read_before(self, at: LogStanding) -> ReadBefore:
        if self._before is None or self._before_of is not at.known:
            self._before = ReadBefore(self._folder, at.known, may_be_packed=self._source.format != "parquet")
            self._before.learn(self._moved.values())
            self._before_of = at.known
        elif self._learned != at.position:
            self._before.learn(at.new)
        self._learned = at.position
        return self._before

    def _is_held(self, path: str, file: ListedFile) -> float:
        """For how many seconds the file has been seen as it is."""
        now_s = time.monotonic()
        return now_s - self._held.setdefault((path, file.version), now_s)

    def _within_limits(
        self, new: Iterable[tuple[Entry, ListedFile]], files_max: int | None, bytes_max: int | None
    ) -> tuple[list[Entry], bool]:
        """As many as an epoch may have, one at least; and whether some are left."""
        taken: list[Entry] = []
        bytes_left = bytes_max
        for entry, file in new:
            if len(taken) == files_max or (taken and bytes_left is not None and bytes_left < file.size):
                return taken, True
            bytes_left = None if bytes_left is None else bytes_left - file.size
            taken.append(entry)
        return taken, False

    def _position(self, positions: Positions) -> str:
        """Where the log is there. Raises CheckpointMismatch for positions that are not this source's."""
        items = dict(positions.items)
        position = items.pop(position_of(self._source.name), "")
        if items or not isinstance(position, str):
            raise CheckpointMismatch(
                "file-positions-foreign",
                f"the positions of the source {self._source.name!r} are none of its log of files: "
                f"{plain(str(next(iter(items), position)))}. To begin anew, {RESET}",
            )
        return position

    def _name(self, path: str) -> str:
        """The file's name within the folder."""
        base = self._folder.base
        if not path.startswith(f"{base}/"):
            raise self._elsewhere(path)
        return path[len(base) + 1 :]

    def _elsewhere(self, path: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            "file-path-changed",
            f"the source {self._source.name!r} has read files of {plain(path)}, and path= is {self._folder.path} now:"
            " which of them were read cannot be told. Name the folder as before, or one above or below it; or give the"
            " source a name of its own (name=), under which all files of the new folder are read",
        )
