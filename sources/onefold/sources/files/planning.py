"""Plans which files an epoch takes: whole files that are new. The positions name all that were read and are there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cached_property

from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.sources.files.config import FileSourceConfig
from onefold.sources.files.listing import FILES_MAX, Folder, Listed, changed, gone
from onefold.sources.files.splitting import splits_of

__all__ = ["FilePlanner", "position_of"]


def position_of(source: str, file: str = "") -> str:
    """What a file, or with none the beginning of all of them, is called in positions."""
    return f"#{source}/{file}"


class FilePlanner:
    """Plans epochs of one source. A position is a file's version, and a file that isn't listed is still to be read.

    Of more than FILES_MAX files, those that were read and are gone leave the positions, so these don't grow for ever.
    """

    def __init__(
        self, source: FileSourceConfig, frozen: Positions | None = None, until: Positions | None = None
    ) -> None:
        self._source = source
        self._frozen = frozen
        self._until = None if until is None else dict(until.items)

    @cached_property
    def _folder(self) -> Folder:
        return Folder(self._source.path)

    def initial(self) -> Positions:
        return Positions() if self._frozen is None else self._frozen

    def latest(self, start: Positions) -> Positions:
        there = self._there(start)
        return self._moved(start, there, self._new(start, there))

    def end(self, start: Positions) -> Positions:
        there = self._there(start)
        return self._moved(start, there, self._within_limits(self._new(start, there)))

    def splits(self, span: Range) -> list[Split]:
        known, found = dict(span.start.items), []
        for position, version in span.end.items:
            if position not in known:
                file = self._folder.check_same(self._name(position), str(version))
                found += [Split(position, part, size) for part, size in splits_of(self._source, self._folder, file)]
        return found

    def is_done(self, at: Positions) -> bool:
        return self._until is not None and self._until.keys() <= dict(at.items).keys()

    def completed(self, end: Positions) -> None:
        """Nobody else is told."""

    def close(self) -> None:
        self.__dict__.pop("_folder", None)

    def _there(self, start: Positions) -> dict[str, Listed]:
        """The files of now by their positions. Raises DataLoss where one has changed since it was read."""
        listed = self._folder.list(self._source.pattern)
        there = {position_of(self._source.name, name): file for name, file in listed.items()}
        for position, version in (*start.items, *(self._until or {}).items()):
            if position in there and there[position].version != version:
                raise changed(f"{self._folder.path}/{there[position].name}", str(version), there[position].version)
        return there

    def _new(self, start: Positions, there: dict[str, Listed]) -> list[Listed]:
        """What is still to be read, oldest first."""
        known = dict(start.items)
        if self._until is None:
            ripe_s = time.time() - self._source.settle_s
            new = [file for at, file in there.items() if at not in known and file.modified_s <= ripe_s]
        else:
            wanted = [at for at in self._until if at not in known]
            if lost := [at for at in wanted if at not in there]:
                raise gone(f"{self._folder.path}/{self._name(lost[0])}")
            new = [there[at] for at in wanted]
        return sorted(new, key=lambda file: (file.modified_s, file.name))

    def _within_limits(self, new: list[Listed]) -> Iterable[Listed]:
        """As many as an epoch may have; one at least."""
        bytes_left = self._source.max_bytes_per_trigger
        for number, file in enumerate(new):
            if number == self._source.max_files_per_trigger or (
                number and bytes_left is not None and bytes_left < file.size
            ):
                return
            bytes_left = None if bytes_left is None else bytes_left - file.size
            yield file

    def _moved(self, start: Positions, there: dict[str, Listed], taken: Iterable[Listed]) -> Positions:
        new = {position_of(self._source.name, file.name): file.version for file in taken}
        if not new:
            return start
        kept = dict(start.items)
        if len(kept) + len(new) > FILES_MAX:
            kept = {at: version for at, version in kept.items() if at in there or at in (self._until or {})}
        return Positions.of({**kept, **new})

    def _name(self, position: str) -> str:
        return position.removeprefix(position_of(self._source.name))
