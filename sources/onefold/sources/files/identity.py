"""Which file is one that was read under another path: moved, packed or unpacked since.

A file is its path. Where a path that was read is gone, another file is it, if it has the same time, the same first and
last content and the same size, all unpacked; a file that was packed in place, `a.csv` as `a.csv.gz`, may have another
time. What was read as a packed file is known unpacked, or packed anew, by its time, first content and name.
Of an object store that cannot be told: a copy has a new time there. A file that may be one that was read is read.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

import pyarrow as pa

from onefold.core.errors import OnefoldError
from onefold.sources.files.file_log import Entry
from onefold.sources.files.listing import Folder, ListedFile, codec_of

MARK_BYTES = 1024
_BLOCK = 1 << 20
_ALIKE_MAX = 100  # files of one time and one first content that are looked at
_FIRST = 16  # characters of a mark that are of the first content


def mark_of(folder: Folder, name: str, *, may_be_packed: bool) -> str:
    """The checksums of a file's first content, and of its last bytes, by which files of one program and second differ;
    empty where none can be taken, of a damaged file for one."""
    if not folder.is_local:
        return ""
    try:
        first, last = folder.ends(name, MARK_BYTES, is_packed=may_be_packed and codec_of(name) is not None)
    except (pa.ArrowException, OSError, OnefoldError):
        return ""
    return _digest(first) + _digest(last)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class ReadBefore:
    """Finds the file that was read among those that are known, each for one file."""

    def __init__(self, folder: Folder, known: Mapping[str, Entry], *, may_be_packed: bool) -> None:
        self._folder, self._known, self._may_be_packed = folder, known, may_be_packed
        self._alike: defaultdict[tuple[str, str], dict[str, Entry]] = defaultdict(dict)
        self._taken: set[str] = set()
        self._there: Collection[str] = ()
        self.learn(known.values())

    def see(self, there: Collection[str]) -> None:
        """The paths of all files that there are now."""
        self._there = there

    def learn(self, entries: Collection[Entry]) -> None:
        """These are known as well now."""
        for entry in entries:
            for look in self._looks(entry.path, entry.version, entry.mark):
                self._alike[look][entry.path] = entry
        for entry in entries:
            if entry.was:
                self._take(entry.was)

    def alike(self, path: str, file: ListedFile, mark: str) -> Entry | None:
        """A file that was read, and that this one may be under another path; be it gone, or still there."""
        packed = self._known.get(self._unpacked_path(path) or "")
        if packed is not None and packed.path not in self._taken and not self.is_gone(packed):
            return packed  # somebody packs it now, or has done so and keeps both
        found = None
        for entry in self._candidates(packed, path, file, mark):
            if entry.path != path and self._fits(entry, file, mark):
                if self.is_gone(entry):
                    return entry
                found = found or entry
        return found

    def _candidates(self, packed: Entry | None, path: str, file: ListedFile, mark: str) -> Iterator[Entry]:
        if packed is not None and mark and packed.mark[:_FIRST] == mark[:_FIRST] and packed.path not in self._taken:
            yield packed
        for look in self._looks(path, file.version, mark):
            yield from islice(self._alike.get(look, {}).values(), _ALIKE_MAX)

    def _looks(self, path: str, version: str, mark: str) -> list[tuple[str, str]]:
        """What files have in common that may be one, the surest first."""
        size, _, moment = version.partition(":")
        if self._folder.is_local:
            return [(moment, mark), (moment, mark[:_FIRST])] if mark else []
        return [(size, path.rpartition("/")[2])]

    def is_gone(self, entry: Entry) -> bool:
        """Whether nothing is at the path any more. What cannot be looked at is there."""
        if not self._folder.is_local:
            return entry.path not in self._there
        try:
            os.lstat(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def _take(self, path: str) -> None:
        """It is the file of another path now: a second one of its content is a file of its own."""
        self._taken.add(path)
        entry = self._known.get(path)
        for look in self._looks(path, entry.version, entry.mark) if entry is not None else ():
            self._alike[look].pop(path, None)

    def _fits(self, entry: Entry, file: ListedFile, mark: str) -> bool:
        was_packed, is_packed = self._codec(entry.path), self._codec(file.name)
        size = int(entry.version.partition(":")[0])
        if was_packed == is_packed:
            return size == file.size and entry.mark == mark
        if was_packed is not None:
            return self._unpacked_name(entry.path) == self._unpacked_name(file.name)
        return (size, entry.mark[_FIRST:]) == self._unpacked_end(file.name)

    def _unpacked_end(self, name: str) -> tuple[int, str]:
        """The unpacked size, and the checksum of the last content; -1 where it cannot be unpacked."""
        total, last = 0, b""
        try:
            with self._folder.unpacked(name) as file:
                while block := file.read(_BLOCK):
                    total, last = total + len(block), (last + block)[-MARK_BYTES:]
        except (pa.ArrowException, OSError, OnefoldError):
            return -1, ""
        return total, _digest(last)

    def _unpacked_name(self, path: str) -> str:
        name = path.rpartition("/")[2]
        return name if self._codec(name) is None else name[: name.rindex(".")]

    def _codec(self, path: str) -> str | None:
        return codec_of(path) if self._may_be_packed else None

    def _unpacked_path(self, path: str) -> str | None:
        return None if self._codec(path) is None or not self._folder.is_local else path[: path.rindex(".")]
