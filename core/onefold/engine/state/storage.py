"""Where snapshots are kept: files of one pipeline, in a folder of this machine or wherever `pyarrow.fs` reaches.

A file of a snapshot is written once, under a name that nobody else uses, and is never changed; so it needs no
temporary name: one that is half written is named by no snapshot, and the sweep removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from onefold.core.errors import ConfigError, OnefoldError, OutOfResources, Retriable
from onefold.core.writing.durable_files import make_folder, sync_folder, write_file

__all__ = ["Storage", "folder_of"]

_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)


class Storage:
    """The files of one pipeline's state. `root` is a folder or a URL (`s3://bucket/flows`); names have `/` between
    their parts. What `write` and `replace` have answered outlives a crash of this machine. Pickles.

    Raises OutOfResources where the disk is full, ConfigError where this process may not write, Retriable where the
    storage does not answer, and Python's FileNotFoundError where a file is not there.
    """

    def __init__(self, root: str, pipeline: str) -> None:
        self.root = root
        self.pipeline = pipeline

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.pipeline)

    def path(self, name: str = "") -> str:
        """The file's whole path, as its filesystem has it."""
        return f"{self._place[1]}/{name}".rstrip("/")

    def write(self, name: str, content: Iterable[bytes | pa.Buffer]) -> None:
        """Write a new file. Where that fails, nothing is left of it."""
        with self._reaching(name):
            try:
                self._write(name, content)
            except BaseException:
                with suppress(OSError):
                    self._fs.delete_file(self.path(name))
                raise

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """So many bytes from `offset` on, or up to the end; fewer where the file ends before. A negative offset counts
        from the end."""
        with self._reaching(name), self._fs.open_input_file(self.path(name)) as file:
            if offset < 0:
                offset = max(file.size() + offset, 0)
            data: bytes = file.read_at(file.size() - offset if length is None else length, offset)
            return data

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """In bytes; None where the file is not there."""
        with self._reaching(names[0] if names else ""):
            found = self._fs.get_file_info([self.path(name) for name in names])
        return {name: info.size if info.is_file else None for name, info in zip(names, found, strict=True)}

    def below(self, folder: str) -> list[str]:
        """The names of all files below the folder, sorted; none where there is no folder."""
        with self._reaching(folder):
            selector = fs.FileSelector(self.path(folder), recursive=True, allow_not_found=True)
            prefix = f"{self.path()}/"
            return sorted(info.path.removeprefix(prefix) for info in self._fs.get_file_info(selector) if info.is_file)

    def remove(self, names: Iterable[str]) -> None:
        """What is gone already is fine."""
        for name in names:
            with self._reaching(name), suppress(FileNotFoundError):
                self._fs.delete_file(self.path(name))

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file whole: a reader sees the old content or the new one. Called under `locked`."""
        if self.is_local:
            temporary = Path(self.path(f"{name}.tmp"))  # one name: callers have the lock
            self.write(f"{name}.tmp", [content])
            with self._reaching(name):
                temporary.replace(self.path(name))
                sync_folder(temporary.parent)
        else:  # an object appears whole, when its stream closes
            with self._reaching(name):
                self._write(name, [content])

    def find(self, name: str) -> bytes | None:
        """A small file's content; None where it is not there."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all processes of this machine, for a read and the write that depends on it.

        Object stores offer no such thing through `pyarrow.fs`, and none is needed for safety there: which epoch counts
        is the checkpoint store's decision. What may be lost without it is a fence's early warning.
        """
        if not self.is_local:
            yield
            return
        with self._reaching("lock"):
            make_folder(Path(self.path()))
            number = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    @property
    def is_local(self) -> bool:
        return isinstance(self._fs, fs.LocalFileSystem)

    @property
    def _fs(self) -> fs.FileSystem:
        return self._place[0]

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        """The filesystem, and the pipeline's folder in it."""
        try:
            if "://" in self.root:
                system, base = fs.FileSystem.from_uri(self.root)
            else:
                system, base = fs.LocalFileSystem(), str(Path(self.root).absolute())
        except (pa.ArrowInvalid, NotImplementedError, OSError) as error:
            raise ConfigError(
                "state-storage-unknown",
                f"checkpoints cannot be kept in {self.root}: {error}. Name a folder, or a URL of s3, gs, hdfs or file",
            ) from error
        return system, f"{base.rstrip('/')}/{folder_of(self.pipeline)}"

    def _write(self, name: str, content: Iterable[bytes | pa.Buffer]) -> None:
        path = self.path(name)
        if self.is_local:
            write_file(Path(path), content)
        else:
            with self._fs.open_output_stream(path) as stream:
                for chunk in content:
                    stream.write(chunk)

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._because(name, error) from error

    def _because(self, name: str, error: OSError) -> OnefoldError:
        at = f"{self.root}: {self.path(name)}" if "://" in self.root else self.path(name)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return OutOfResources(
                "state-disk-full",
                f"{at} cannot be written: {error.strerror}. No decided snapshot is touched by it. Make room, or keep"
                " fewer (retain)",
            )
        if error.errno in _REFUSALS:
            return ConfigError(
                "state-storage-refused",
                f"{at} cannot be written or read: {error.strerror}. Name a checkpoint folder in which this process may"
                " make folders and files",
            )
        return Retriable("state-storage-unavailable", f"{at} cannot be read or written: {error}")


def folder_of(pipeline: str) -> str:
    """The name of a pipeline's folder among those of all."""
    return quote(pipeline, safe="").replace(".", "%2E")  # "." and ".." are other folders
