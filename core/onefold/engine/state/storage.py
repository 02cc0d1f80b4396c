"""Where snapshots are kept: files of one pipeline, in a folder of this machine or wherever `pyarrow.fs` reaches.

A file of a snapshot is written once, under a name that nobody else uses, and is never changed; so it needs no
temporary name: one that is half written is named by no snapshot, and the sweep removes it.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from onefold.core.errors import ConfigError, OnefoldError, OutOfResources, Retriable
from onefold.core.values.plain import said_without, shown_url
from onefold.core.writing.durable_files import OwnFolder
from onefold.engine.state import folder_of

HELD_S_MAX = 86_400.0  # a hold of a process that was killed
LOCK_S_MAX = 60.0  # it is held for a note and the files that it names: some milliseconds
SMALL_BYTES_MAX = 64 << 20  # of a note or a row: what is beyond is cut, and then none

_HOLDS = "holds"
_REFUSALS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


class Storage:
    """The files of one pipeline's state. `root` is a folder or a URL (`s3://bucket/flows`); names have `/` between
    their parts. What `write` and `replace` have answered outlives a crash of this machine, unless the latter's file is
    not to be synced. Pickles.

    What is made on this machine is this user's alone, and no link within `root` is followed.

    Raises OutOfResources where the disk is full, ConfigError where this process may not write, Retriable where the
    storage does not answer, and Python's FileNotFoundError where a file is not there.
    """

    def __init__(self, root: str, pipeline: str) -> None:
        self.root = root
        self.pipeline = pipeline
        self.written_bytes = 0  # of new files, by this object

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.pipeline)

    def path(self, name: str = "") -> str:
        """The file's whole path, as its filesystem has it."""
        return f"{self._place[1]}/{folder_of(self.pipeline)}/{name}".rstrip("/")

    def write(self, name: str, content: Iterable[bytes | pa.Buffer]) -> None:
        """Write a new file. Where that fails, nothing is left of it."""
        with self._reaching(name):
            self._files.write(name, self._counted(content))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """So many bytes from `offset` on, or up to the end; fewer where the file ends before. A negative offset counts
        from the end."""
        with self._reaching(name):
            return self._files.read(name, offset, length)

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """In bytes; None where the file is not there."""
        with self._reaching(names[0] if names else ""):
            return self._files.sizes(names)

    def below(self, folder: str) -> list[str]:
        """The names of all files below the folder, sorted; none where there is no folder."""
        with self._reaching(folder):
            return sorted(self._files.below(folder))

    def remove(self, names: Iterable[str]) -> None:
        """What is gone already is fine."""
        for name in names:
            with self._reaching(name), suppress(FileNotFoundError):
                self._files.remove(name)

    def replace(self, name: str, content: bytes, synced: bool = True) -> None:
        """Write a small file whole: a reader sees the old content or the new one. Called under `locked`."""
        with self._reaching(name):
            self._files.replace(name, content, synced)

    def find(self, name: str) -> bytes | None:
        """A small file's content; None where it is not there."""
        try:
            return self.read(name, 0, SMALL_BYTES_MAX)
        except FileNotFoundError:
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all processes of this machine, for a read and the write that depends on it. Raises Retriable
        where another process does not let go of it.

        Object stores offer no such thing through `pyarrow.fs`, and none is needed for safety there: which epoch counts
        is the checkpoint store's decision. What may be lost without it is a fence's early warning.
        """
        if not isinstance(self._files, OwnFolder):
            yield
            return
        with self._reaching("lock"):
            number = self._files.lock(LOCK_S_MAX)
        try:
            yield
        finally:
            os.close(number)

    @contextmanager
    def holding(self, number: int) -> Iterator[None]:
        """Within the block `held` has that number, in every process."""
        name = f"{_HOLDS}/{uuid.uuid4().hex}.json"
        with self.locked():
            self.replace(name, json.dumps({"number": number, "at_s": time.time()}).encode())
        try:
            yield
        finally:
            self.remove([name])

    def held(self) -> set[int]:
        """The numbers that processes hold."""
        found = set[int]()
        for name in self.below(_HOLDS):
            try:
                values = json.loads(self.find(name) or b"{}")
                if abs(time.time() - float(values["at_s"])) < HELD_S_MAX:
                    found.add(int(values["number"]))
                    continue
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                pass  # it is cut, or nobody's
            self.remove([name])
        return found

    def _counted(self, content: Iterable[bytes | pa.Buffer]) -> Iterator[bytes | pa.Buffer]:
        for chunk in content:
            self.written_bytes += len(chunk)
            yield chunk

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        """The filesystem, and the path of the root in it."""
        if "://" not in self.root:
            return fs.LocalFileSystem(), str(Path(self.root).absolute()).rstrip("/")
        try:
            system, base = fs.FileSystem.from_uri(self.root)
        except (pa.ArrowInvalid, NotImplementedError, OSError) as error:  # it has the URL, with what is secret in it
            said = said_without(self.root, str(error))
        else:
            return system, base.rstrip("/")
        raise ConfigError(
            "state-storage-unknown",
            f"checkpoints cannot be kept in {shown_url(self.root)}: {said}. Name a folder, or a URL of s3, gs, hdfs or"
            " file",
        )

    @cached_property
    def _files(self) -> OwnFolder | _Objects:
        system, base = self._place
        if isinstance(system, fs.LocalFileSystem):
            return OwnFolder(Path(base or "/"), folder_of(self.pipeline))
        return _Objects(system, self.path())

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._because(name, error) from error

    def _because(self, name: str, error: OSError) -> OnefoldError:
        at = f"{shown_url(self.root)}: {self.path(name)}" if "://" in self.root else self.path(name)
        if isinstance(error, TimeoutError) and error.errno is None:  # the lock's own, and none of a network's
            return Retriable(
                "state-lock-held",
                f"another process has held the lock {at} for {LOCK_S_MAX:.0f} s, and nothing was written. Find it"
                f" (fuser {at}), and end it unless it is another run of this flow",
            )
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
                " make folders and files; it may be a link, and nothing in it is one",
            )
        return Retriable("state-storage-unavailable", f"{at} cannot be read or written: {error}")


class _Objects:
    """Files of another filesystem than this machine's, below `path`. An object appears whole, when its stream ends."""

    def __init__(self, system: fs.FileSystem, path: str) -> None:
        self._fs, self._path = system, path

    def write(self, name: str, content: Iterable[bytes | pa.Buffer]) -> None:
        try:
            with self._fs.open_output_stream(self._at(name)) as stream:
                for chunk in content:
                    stream.write(chunk)
        except BaseException:
            with suppress(OSError):
                self.remove(name)
            raise

    def read(self, name: str, offset: int, length: int | None) -> bytes:
        with self._fs.open_input_file(self._at(name)) as file:
            size = file.size()
            begin = min(max(size + offset, 0) if offset < 0 else offset, size)
            data: bytes = file.read_at(size - begin if length is None else min(length, size - begin), begin)
            return data

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        found = self._fs.get_file_info([*map(self._at, names)])
        return {name: info.size if info.is_file else None for name, info in zip(names, found, strict=True)}

    def below(self, folder: str) -> Iterator[str]:
        selector = fs.FileSelector(self._at(folder), recursive=True, allow_not_found=True)
        for info in self._fs.get_file_info(selector):
            if info.is_file:
                yield info.path.removeprefix(f"{self._path}/")

    def remove(self, name: str) -> None:
        self._fs.delete_file(self._at(name))

    def replace(self, name: str, content: bytes, synced: bool) -> None:
        del synced
        self.write(name, [content])

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}".rstrip("/")
