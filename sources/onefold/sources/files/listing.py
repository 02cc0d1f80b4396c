"""The files that there are, and which contents each has: a file that is read must never change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import PurePosixPath
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs

from onefold.core.errors import BadRecord, ConfigError, DataLoss, Retriable

__all__ = ["FILES_MAX", "Folder", "Listed", "changed", "gone"]

FILES_MAX = 10_000  # positions name every file of the folder that was read


@dataclass(frozen=True, slots=True)
class Listed:
    """A file by its name within the folder, as it was when it was listed. `version` changes when its contents do."""

    name: str
    size: int
    modified_s: float
    version: str


class Folder:
    """A folder of files, or one file, on any filesystem that pyarrow knows. Pickles not."""

    def __init__(self, path: str) -> None:
        place = urlparse(path)
        self.path = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}" if place.scheme else path  # shown
        with self._asking("opening it"):
            try:
                self.filesystem, self._root = fs.FileSystem.from_uri(path)
            except (ValueError, pa.ArrowInvalid) as error:
                said = str(error).replace(path, self.path)
                raise ConfigError("option-value", f"path={self.path!r} is no folder and no URI: {said}") from None
        self.is_local = isinstance(self.filesystem, fs.LocalFileSystem)

    def list(self, pattern: str) -> dict[str, Listed]:
        """The files whose own names match, by their names within the folder, without what is hidden (`.x`, `_x`)."""
        with self._asking("listing its files"):
            root = self.filesystem.get_file_info(self._root)
            if root.type == fs.FileType.NotFound:
                raise ConfigError(
                    "folder-missing", f"{self.path} does not exist: create it, or correct path= of the source"
                )
            if root.type == fs.FileType.File:
                return {root.base_name: self._listed(root.base_name, root)}
            infos = self.filesystem.get_file_info(fs.FileSelector(self._root, recursive=True))
        found = {}
        for info in infos:
            name = info.path[len(self._root) :].lstrip("/")
            hidden = any(part[:1] in ("_", ".") for part in PurePosixPath(name).parts)
            if info.type == fs.FileType.File and not hidden and fnmatch(info.base_name, pattern):
                found[name] = self._listed(name, info)
        if len(found) > FILES_MAX:
            raise ConfigError(
                "too-many-files",
                f"{self.path} has {len(found)} files, and positions name each of them: {FILES_MAX} at most. Move away"
                " those that were read, or name a folder within",
            )
        return found

    def now(self, name: str) -> Listed | None:
        """One file as it is now; None where there is none."""
        with self._asking(f"looking at {name}"):
            info = self.filesystem.get_file_info(self._whole(name))
        return self._listed(name, info) if info.type == fs.FileType.File else None

    def check_same(self, name: str, version: str) -> Listed:
        """The file, which must be as it was. Raises DataLoss where it is gone, or has changed."""
        there = self.now(name)
        if there is None:
            raise gone(f"{self.path}/{name}")
        if there.version != version:
            raise changed(f"{self.path}/{name}", version, there.version)
        return there

    @contextmanager
    def opened(self, name: str) -> Iterator[pa.NativeFile]:
        """The file for reading at any place. Errors of the filesystem are Retriable, also while it is read."""
        with self._asking(f"reading {name}"), self.filesystem.open_input_file(self._whole(name)) as file:
            yield file

    @contextmanager
    def unpacked(self, name: str) -> Iterator[pa.NativeFile]:
        """The contents of a compressed file, from the beginning on."""
        codec = pa.Codec.detect(name.lower()).name
        with (
            self._asking(f"reading {name}"),
            self.filesystem.open_input_stream(self._whole(name), compression=codec) as file,
        ):
            yield file

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
                f"{self.path}/{name} cannot be read as {what}: {error}. on_error is for lines, not for whole files:"
                " restore this one, or take it away before the pipeline starts again",
            ) from error

    @cached_property
    def _is_file(self) -> bool:
        return bool(self.filesystem.get_file_info(self._root).is_file)

    def _whole(self, name: str) -> str:
        return self._root if self._is_file else f"{self._root.rstrip('/')}/{name}"

    def _listed(self, name: str, info: fs.FileInfo) -> Listed:
        # Object stores have times of seconds in some answers, and of less in others.
        moment = info.mtime_ns if self.is_local else info.mtime_ns // 1_000_000_000
        return Listed(name, info.size, info.mtime_ns / 1e9, f"{info.size}:{moment}")

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise ConfigError(
                "folder-not-readable", f"{self.path}: {what} is not permitted: {error}. Let this user read the folder"
            ) from error
        except FileNotFoundError as error:
            raise gone(f"{self.path} ({what})") from error
        except OSError as error:
            raise Retriable("files-unavailable", f"{self.path} does not answer ({what}): {error}") from error


def gone(where: str) -> DataLoss:
    return DataLoss(
        "file-gone",
        f"{where}: the file was to be read, and is gone. Restore it as it was, with its time; or accept the loss: start"
        " over under a new pipeline name",
    )


def changed(where: str, version: str, now: str) -> DataLoss:
    return DataLoss(
        "file-changed",
        f"{where}: the file was {_in_words(version)}, and is {_in_words(now)}: nothing of the change was read. A file"
        " must not change once it is there: write it elsewhere and rename it, or set settle_s. Restore it as it was;"
        " or take it away, and give what is new in it a name of its own",
    )


def _in_words(version: str) -> str:
    size, _, moment = version.partition(":")
    return f"{size} bytes of the time {moment}"
