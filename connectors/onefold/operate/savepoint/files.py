"""Files and folders that are copied, on this machine or wherever Spark reaches. A path is text; `/` separates."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from onefold.core import ConfigError, OutOfResources, Retriable
from onefold.core.values.plain import said_without, shown_url
from onefold.core.writing.durable_files import OwnFolder, files_below, make_folder, opened_below, sync_folder
from onefold.spark.runtime.checkpoint import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Anywhere", "FileSystem", "LocalFiles"]

_CHUNK_BYTES = 4 << 20


class FileSystem(Protocol):
    """A filesystem. What `write` and `rename` have done outlives a crash of this machine; what `remove` has done need
    not."""

    def names(self, folder: str) -> Sequence[str]:
        """The names of what is in the folder; none where there is no folder."""
        ...

    def below(self, folder: str) -> Sequence[str]:
        """The paths, from the folder on, of all files below it, sorted. Hidden ones are left out: they are checksums
        and half-written files of Hadoop's."""
        ...

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        """The content of a file below the folder. Raises Retriable where it cannot be read, as where it is not
        there."""
        ...

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        """Write a file below a folder that is being made, in the place of one that is there."""
        ...

    def rename(self, path: str, to: str) -> None: ...

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it. What is gone already is fine."""
        ...

    def exists(self, path: str) -> bool:
        """Raises Retriable where that cannot be said."""
        ...


class LocalFiles:
    """Files of this machine, by path or `file:` URL. Links are no files, none is followed below a folder that is read,
    or in the place of one that is written, and what is made is this user's alone. Raises OutOfResources where the disk
    is full."""

    def names(self, folder: str) -> Sequence[str]:
        at = local_path(folder)
        return sorted(path.name for path in at.iterdir()) if at.is_dir() else []

    def below(self, folder: str) -> Sequence[str]:
        at = local_path(folder)
        if not at.is_dir():
            return []
        try:
            return sorted(name for name in files_below(at) if not name.rpartition("/")[2].startswith("."))
        except OSError as error:
            raise _unreadable(folder, error) from error

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        try:
            with os.fdopen(opened_below(local_path(folder), path), "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise _unreadable(f"{folder}/{path}", error) from error

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        at = local_path(folder)
        own = OwnFolder(at.parent, at.name)
        try:
            with suppress(FileNotFoundError):
                own.remove(path)
            own.write(path, content)
        except OSError as error:
            raise _unwritable(f"{folder}/{path}", error) from error

    def rename(self, path: str, to: str) -> None:
        source, target = local_path(path), local_path(to)
        try:
            make_folder(target.parent)
            source.rename(target)
            for folder in {source.parent, target.parent}:
                sync_folder(folder)
        except OSError as error:
            raise _unwritable(to, error) from error

    def remove(self, path: str) -> None:
        at = local_path(path)
        try:
            if at.is_dir() and not at.is_symlink():
                shutil.rmtree(at)
            else:
                at.unlink(missing_ok=True)
        except RecursionError as error:
            raise _unwritable(path, OSError(errno.ENAMETOOLONG, "its folders are nested too deep")) from error
        except OSError as error:
            raise _unwritable(path, error) from error

    def exists(self, path: str) -> bool:
        try:
            local_path(path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _unreadable(path, error) from error
        return True


def _unreadable(path: str, error: OSError) -> Retriable:
    return Retriable("savepoint-unreadable", f"{shown_url(path)} cannot be read: {error.strerror}")


def _unwritable(path: str, error: OSError) -> ConfigError | OutOfResources:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfResources(
            "savepoint-disk-full", f"{shown_url(path)} cannot be written: {error.strerror}. Make room, then try again"
        )
    return ConfigError("file-unwritable", f"{shown_url(path)} cannot be written: {error.strerror}")


class HadoopFiles:
    """Files of every filesystem that Spark knows, with its settings and credentials."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._settings = spark._jsparkSession.sessionState().newHadoopConf()

    def names(self, folder: str) -> Sequence[str]:
        system, at = self._at(folder)
        with _Answering(folder):
            if not system.exists(at):
                return []
            return sorted(status.getPath().getName() for status in system.listStatus(at))

    def below(self, folder: str) -> Sequence[str]:
        system, at = self._at(folder)
        with _Answering(folder):
            if not system.exists(at):
                return []
            root = system.makeQualified(at).toUri().getPath().rstrip("/") + "/"
            found, paths = system.listFiles(at, True), []
            while found.hasNext():
                path = found.next().getPath()
                if not path.getName().startswith("."):
                    paths.append(path.toUri().getPath().removeprefix(root))
        return sorted(paths)

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        path = f"{folder}/{path}"
        system, at = self._at(path)
        with _Answering(path):
            stream = system.open(at)
            try:
                while chunk := bytes(stream.readNBytes(_CHUNK_BYTES)):
                    yield chunk
            finally:
                stream.close()

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        path = f"{folder}/{path}"
        system, at = self._at(path)
        with _Answering(path):
            stream = system.create(at, True)
            try:
                for chunk in content:
                    stream.write(bytearray(chunk))
            finally:
                stream.close()

    def rename(self, path: str, to: str) -> None:
        system, at = self._at(path)
        _, target = self._at(to)
        with _Answering(path):
            system.mkdirs(target.getParent())
            if not system.rename(at, target):
                raise Retriable(
                    "savepoint-unreadable",
                    f"{shown_url(path)} was not renamed to {shown_url(to)}: run the same command again",
                )

    def remove(self, path: str) -> None:
        system, at = self._at(path)
        with _Answering(path):
            system.delete(at, True)

    def exists(self, path: str) -> bool:
        system, at = self._at(path)
        with _Answering(path):
            return bool(system.exists(at))

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._jvm.org.apache.hadoop.fs.Path(path)
        with _Answering(path):
            return at.getFileSystem(self._settings), at


class _Answering:
    """Raises what Java says of the path as Retriable."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from py4j.protocol import Py4JError, Py4JJavaError

        if isinstance(error, Py4JError):
            said = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
            raise Retriable(
                "savepoint-unreadable",
                f"{shown_url(self._path)} cannot be read or written: {said_without(self._path, said.splitlines()[0])}",
            ) from error


class Anywhere:
    """The files of this machine, and through a Spark session, which is only asked for then, those elsewhere."""

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self.spark = spark
        self._local = LocalFiles()
        self._hadoop: HadoopFiles | None = None

    def of(self, path: str) -> FileSystem:
        if is_local(path):
            return self._local
        if self._hadoop is None:
            self._hadoop = HadoopFiles(self.spark())
        return self._hadoop
