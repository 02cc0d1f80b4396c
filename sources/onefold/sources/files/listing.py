"""The files that there are, and which contents each has: a file that is read must never change."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs

from onefold.core.errors import BadRecord, ConfigError, DataLoss, OnefoldError, Retriable
from onefold.core.values.plain import plain, said_without, shown_url
from onefold.core.values.remedies import RESET
from onefold.core.writing.durable_files import opened, opened_below

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_VANISHED = (errno.ENOENT, errno.ENOTDIR)
_PASSED_OVER = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file by its name within the folder and by its whole path, as it was when it was listed. `version` changes when
    its contents do."""

    name: str
    path: str
    size: int
    modified_ns: int
    version: str


class Folder:
    """A folder of files, or one file, on any filesystem that pyarrow knows. Pickles not.

    A link of this machine is followed where it is the folder itself, and nowhere below.
    """

    def __init__(self, path: str) -> None:
        self.path = shown_url(path)
        with self._asking("opening it"):
            said = ""
            try:
                self.filesystem, self._root = fs.FileSystem.from_uri(path)
            except (ValueError, pa.ArrowInvalid) as error:  # it has the URI, with what is secret in it
                said = said_without(path, str(error))
            if said:
                raise ConfigError("option-value", f"path={self.path!r} is no folder and no URI: {said}")
        self.is_local = isinstance(self.filesystem, fs.LocalFileSystem)
        if self.is_local:
            self._root = os.path.realpath(self._root)
        self._walk = Walk(self._root)
        self._was_there = False
        self._listed: dict[str, ListedFile] = {}

    @cached_property
    def base(self) -> str:
        """The whole path of what names are within: with the scheme and host of a URI, and no link in it."""
        if self.is_local:
            return str(Path(self._root).parent) if self._is_file else self._root
        path = self._root.rpartition("/")[0] if self._is_file else self._root
        return f"{self.path.partition('://')[0]}://{urlparse(self.path).hostname or ''}/{path.strip('/')}"

    def list(self, pattern: str) -> dict[str, ListedFile]:
        """The files whose own names match, by their whole paths, without what is hidden (`.x`, `_x`)."""
        with self._asking("listing its files"):
            if (root := self.filesystem.get_file_info(self._root)).type == fs.FileType.NotFound:
                raise self._missing()
            if root.type == fs.FileType.File:
                found = [self._seen(root.base_name, root.size, root.mtime_ns)]
            else:
                matches = re.compile(translate(pattern)).match
                walked = self._walk.files() if self.is_local else self._selected()
                try:
                    found = [self._seen(*each) for each in walked if matches(each[0].rpartition("/")[2])]
                except FileNotFoundError as error:
                    said = f"{self.path}: a folder has gone while it was listed"
                    raise Retriable("files-unavailable", said) from error
        self._listed, self._was_there = {file.name: file for file in found}, True
        return {file.path: file for file in found}

    def now(self, name: str) -> ListedFile | None:
        """One file as it is now; None where there is none."""
        with self._asking(f"looking at {plain(name)}"):
            if not self.is_local:
                info = self.filesystem.get_file_info(self._whole(name))
                return self._seen(name, info.size, info.mtime_ns) if info.type == fs.FileType.File else None
            try:
                number = self._number(name)
            except FileNotFoundError:
                return None
            try:
                found = os.fstat(number)
            finally:
                os.close(number)
        return self._seen(name, found.st_size, found.st_mtime_ns)

    def check_same(self, name: str, version: str) -> ListedFile:
        """The file, which must be as it was. Raises DataLoss where it is gone, or has changed."""
        there = self.now(name)
        if there is None:
            raise gone(self.shown(name))
        if there.version != version:
            raise changed(self.shown(name), version, there.version)
        return there

    def shown(self, name: str) -> str:
        """The file's whole path, as it may stand in an error or a log."""
        return plain(f"{self.path}/{name}")

    @contextmanager
    def opened(self, name: str) -> Iterator[pa.NativeFile]:
        """The file for reading at any place. Errors of the filesystem are Retriable, also while it is read."""
        with self._reached(name) as path, self.filesystem.open_input_file(path) as file:
            yield file

    @contextmanager
    def unpacked(self, name: str) -> Iterator[pa.NativeFile]:
        """The contents of a file, which is compressed if its name says so, from the beginning on."""
        with self._reached(name) as path, self.filesystem.open_input_stream(path, compression=codec_of(name)) as file:
            yield file

    def ends(self, name: str, size: int, *, is_packed: bool) -> tuple[bytes, bytes]:
        """The first bytes of a local file's contents, unpacked, and the last ones as they are. Errors as they come."""
        number = self._number(name)
        try:
            last = os.pread(number, size, max(0, os.fstat(number).st_size - size))
            if not is_packed:
                return os.pread(number, size, 0), last
        finally:
            os.close(number)
        with self.unpacked(name) as file:
            first: bytes = file.read(size)
            return first, last

    @contextmanager
    def decoding(self, name: str, what: str) -> Iterator[None]:
        """Raises BadRecord for a file that is damaged, or is none of that kind."""
        try:
            yield
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:  # of names that are no UTF-8
            if isinstance(error, OSError) and (error.errno is not None or not self.is_local):
                raise  # of the filesystem
            raise BadRecord(
                "data-file-unreadable",
                f"{self.shown(name)} cannot be read as {what}: {plain(str(error))}. on_error is for lines, not for"
                " whole files: restore this one, or take it away before the pipeline starts again",
            ) from error

    @cached_property
    def _is_file(self) -> bool:
        with self._asking("looking at it"):
            return bool(self.filesystem.get_file_info(self._root).is_file)

    @contextmanager
    def _reached(self, name: str) -> Iterator[str]:
        """A path that leads to the file, and through no link that somebody has laid since it was listed."""
        with self._asking(f"reading {plain(name)}"):
            if not self.is_local:
                yield self._whole(name)
                return
            number = self._number(name)
            try:
                yield f"/dev/fd/{number}"
            finally:
                os.close(number)

    def _number(self, name: str) -> int:
        """The descriptor of a local file. Raises FileNotFoundError where there is none, or a link on the way to it."""
        try:
            return opened(self._root) if self._is_file else opened_below(self._root, name)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise FileNotFoundError(errno.ENOENT, str(error.strerror)) from error
            raise

    def _whole(self, name: str) -> str:
        return self._root if self._is_file else f"{self._root.rstrip('/')}/{name}"

    def _selected(self) -> Iterator[tuple[str, int, int]]:
        for info in self.filesystem.get_file_info(fs.FileSelector(self._root, recursive=True)):
            name = info.path[len(self._root) :].lstrip("/")
            if info.type == fs.FileType.File and not any(map(is_hidden, name.split("/"))):
                yield name, info.size, info.mtime_ns

    def _seen(self, name: str, size: int, mtime_ns: int) -> ListedFile:
        last = self._listed.get(name)
        if last is not None and last.size == size and last.modified_ns == mtime_ns:
            return last
        # Object stores have times of seconds in some answers, and of less in others.
        moment = mtime_ns if self.is_local else mtime_ns // 1_000_000_000
        return ListedFile(name, f"{self.base}/{name}", size, mtime_ns, f"{size}:{moment}")

    def _missing(self) -> OnefoldError:
        if self._was_there:  # a filesystem that is not mounted for a while
            return Retriable("files-unavailable", f"{self.path} does not answer: it was there, and does not exist now")
        return ConfigError("folder-missing", f"{self.path} does not exist: create it, or correct path= of the source")

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise ConfigError(
                "folder-not-readable",
                f"{self.path}: {what} is not permitted: {plain(str(error))}. Let this user read the folder",
            ) from error
        except FileNotFoundError as error:
            raise gone(f"{self.path} ({what})") from error
        except OSError as error:
            raise Retriable(
                "files-unavailable", f"{self.path} does not answer ({what}): {plain(str(error))}"
            ) from error


def codec_of(name: str) -> str | None:
    """What a file of lines is compressed with, by its name."""
    return CODECS.get(Path(name).suffix.lower())


def gone(where: str) -> DataLoss:
    return DataLoss(
        "file-gone",
        f"{where}: the file was to be read, and is gone. Restore it as it was, with its time; or accept the loss:"
        f" {RESET}",
    )


def changed(where: str, version: str, now: str) -> DataLoss:
    return DataLoss(
        "file-changed",
        f"{where}: the file was {_in_words(version)}, and is {_in_words(now)}: nothing of the change was read. A file"
        " must not change once it is there: write it elsewhere and rename it, or set settle_s. Restore it as it was;"
        " or take it away, and give what is new in it, from the last line break on, a name of its own",
    )


def _in_words(version: str) -> str:
    size, _, moment = version.partition(":")
    return f"{size} bytes of the time {moment}"


log = logging.getLogger("onefold")


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name, without what is above it, is none that is read."""
    return name[:1] in ("_", ".")


class Walk:
    """Walks of one folder. What it passes over is told once of each kind, in the log."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._told: set[str] = set()

    def files(self) -> Iterator[tuple[str, int, int]]:
        """The files by their names within the folder, with size and time in nanoseconds. Raises OSError where the
        folder itself cannot be listed, and where the filesystem fails."""
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(f"{self._root}/{folder}") as entries:
                    found = [*self._regular(folder, entries, folders)]
            except OSError as error:
                if not folder or error.errno not in (*_VANISHED, *_PASSED_OVER):
                    raise
                if error.errno in _PASSED_OVER:
                    self._tell(f"folders that cannot be listed are passed over ({error.strerror})", folder)
            else:
                yield from found

    def _regular(
        self, folder: str, entries: Iterable[os.DirEntry[str]], folders: list[str]
    ) -> Iterator[tuple[str, int, int]]:
        for entry in entries:
            if entry.name[0] in "._":
                continue
            name = folder + entry.name
            if not _is_utf8(entry.name):
                self._tell("names that are not UTF-8 are passed over: rename such files and folders", name)
            elif entry.is_symlink():
                self._tell("links are not followed: name the folder itself as path=, or move the file here", name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(f"{name}/")
            else:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(found.st_mode):
                    yield name, found.st_size, found.st_mtime_ns

    def _tell(self, what: str, name: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s: %s. The first one is %s", plain(self._root), what, plain(name))


def _is_utf8(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
