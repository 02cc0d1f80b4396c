"""Files of this machine, of the stores that `pyarrow.fs` knows, and of all others that Spark knows. A path is text; `/`
separates its parts."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs

from onefold.core import ConfigError, OutOfResources, Retriable
from onefold.core.checks import present
from onefold.core.values.plain import said_without, shown_url
from onefold.core.writing.durable_files import OwnFolder, files_below, make_folder, opened_below, sync_folder

_CHUNK_BYTES = 4 << 20


def is_local(path: str) -> bool:
    return urlparse(path).scheme in ("", "file")


def local_path(path: str) -> Path:
    """Where that is on this machine. Hadoop writes a local path as `file:/tmp/x`, with no character escaped."""
    bare = path.removeprefix("file:")
    return Path("/" + bare.lstrip("/") if bare.startswith("//") else bare)


def check_writable(root: str) -> None:
    """Raise ConfigError where the checkpoint is on this machine, and this user cannot write to it, or make it."""
    if not is_local(root):
        return
    place = path = local_path(root).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return
    why = f"this user may not write to {place}" if place.is_dir() else f"{place} is no folder"
    raise ConfigError(
        "checkpoint-unwritable",
        f"the checkpoint {path} cannot be {'written' if place == path else 'made'}: {why}. Mend that, or name another"
        " folder as checkpoint",
    )


class FileSystem(Protocol):
    """A filesystem. What `write` and `rename` have done outlives a crash of this machine; what `remove` has done need
    not. Raises Retriable where it does not answer."""

    def names(self, folder: str) -> Sequence[str]:
        """The names of what is in the folder; none where there is no folder."""
        ...

    def below(self, folder: str) -> Sequence[str]:
        """The paths, from the folder on, of all files below it, sorted. Hidden ones are left out: they are checksums
        and half-written files of Hadoop's."""
        ...

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        """The content of a file below the folder. Raises Retriable where it is not there, too."""
        ...

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        """Write a file below a folder that is being made, in the place of one that is there."""
        ...

    def rename(self, path: str, to: str) -> None: ...

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it. What is gone already is fine."""
        ...

    def exists(self, path: str) -> bool: ...


class FileSystems:
    """Every filesystem. The `spark` session, which those need that `pyarrow.fs` does not know, is only asked for
    then."""

    def __init__(self, spark: Callable[[], Any] | None = None) -> None:
        self._spark = spark
        self._known: dict[str, FileSystem] = {"": LocalFiles()}

    def of(self, path: str) -> FileSystem:
        parts = urlparse(path)
        root = "" if is_local(path) else f"{parts.scheme}://{parts.netloc}"
        if root not in self._known:
            self._known[root] = _arrow_files(root) or HadoopFiles(self.spark())
        return self._known[root]

    def spark(self) -> Any:
        return present(self._spark, "files of other machines are read through Spark")()

    def can_read(self, path: str) -> bool:
        """Whether a session is there for those that need one."""
        return is_local(path) or self._spark is not None

    def read(self, path: str) -> str | None:
        """A small file; None where it is not there."""
        files, (folder, _, name) = self.of(path), path.rpartition("/")
        return b"".join(files.read(folder, name)).decode() if files.exists(path) else None

    def names(self, folder: str) -> Sequence[str]:
        return self.of(folder).names(folder)


class LocalFiles:
    """Files of this machine, by path or `file:` URL. Links are no files, none is followed below a folder that is read,
    or in the place of one that is written, and what is made is this user's alone. Raises OutOfResources where the disk
    is full."""

    def names(self, folder: str) -> Sequence[str]:
        at = local_path(folder)
        return sorted(path.name for path in at.iterdir()) if at.is_dir() else []

    def below(self, folder: str) -> Sequence[str]:
        at = local_path(folder)
        with _reaching(folder):
            return sorted(filter(_is_visible, files_below(at))) if at.is_dir() else []

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        with _reaching(f"{folder}/{path}"), os.fdopen(opened_below(local_path(folder), path), "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        at = local_path(folder)
        own = OwnFolder(at.parent, at.name)
        with _reaching(f"{folder}/{path}", writes=True):
            with suppress(FileNotFoundError):
                own.remove(path)
            own.write(path, content)

    def rename(self, path: str, to: str) -> None:
        source, target = local_path(path), local_path(to)
        with _reaching(to, writes=True):
            make_folder(target.parent)
            source.rename(target)
            for folder in {source.parent, target.parent}:
                sync_folder(folder)

    def remove(self, path: str) -> None:
        at = local_path(path)
        with _reaching(path, writes=True):
            if not at.is_dir() or at.is_symlink():
                at.unlink(missing_ok=True)
                return
            try:
                shutil.rmtree(at)
            except RecursionError as error:
                raise OSError(errno.ENAMETOOLONG, "its folders are nested too deep") from error

    def exists(self, path: str) -> bool:
        with _reaching(path), suppress(FileNotFoundError, NotADirectoryError):
            local_path(path).lstat()
            return True
        return False


class _ArrowFiles:
    """Files of a store that `pyarrow.fs` knows, with the credentials that it finds. `root` is the store's URL, whose
    paths begin with `base` there. A file appears whole, when its stream ends."""

    def __init__(self, system: fs.FileSystem, root: str, base: str) -> None:
        self._fs, self._root, self._base = system, root, base.rstrip("/")

    def names(self, folder: str) -> Sequence[str]:
        return sorted(info.base_name for info in self._found(folder, recursive=False))

    def below(self, folder: str) -> Sequence[str]:
        paths = (info.path for info in self._found(folder, recursive=True) if info.is_file)
        return sorted(filter(_is_visible, (path.removeprefix(f"{self._at(folder)}/") for path in paths)))

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        with _reaching(f"{folder}/{path}"), self._fs.open_input_stream(self._at(f"{folder}/{path}")) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        at = f"{folder}/{path}"
        with _reaching(at, writes=True), self._fs.open_output_stream(self._at(at)) as stream:
            for chunk in content:
                stream.write(chunk)

    def rename(self, path: str, to: str) -> None:
        """File by file: such a store has no folders. What a crash leaves in both places goes by the same again."""
        for name in self.below(path):
            with _reaching(to, writes=True):
                self._fs.move(self._at(f"{path}/{name}"), self._at(f"{to}/{name}"))
        self.remove(path)

    def remove(self, path: str) -> None:
        with _reaching(path, writes=True):
            info = self._fs.get_file_info(self._at(path))
            if info.type is fs.FileType.Directory:
                self._fs.delete_dir(info.path)
            elif info.is_file:
                self._fs.delete_file(info.path)

    def exists(self, path: str) -> bool:
        with _reaching(path):
            return self._fs.get_file_info(self._at(path)).type is not fs.FileType.NotFound

    def _found(self, folder: str, *, recursive: bool) -> Any:
        with _reaching(folder):
            at = self._at(folder)
            return self._fs.get_file_info(fs.FileSelector(at, recursive=recursive, allow_not_found=True))

    def _at(self, path: str) -> str:
        return self._base + path.removeprefix(self._root).rstrip("/")


def _arrow_files(root: str) -> _ArrowFiles | None:
    """None for a store that it does not know, and for HDFS, which it reaches by Hadoop's own libraries."""
    if root.startswith("hdfs:"):
        return None
    with _reaching(root), suppress(pa.ArrowInvalid, NotImplementedError):
        system, base = fs.FileSystem.from_uri(root)
        return _ArrowFiles(system, root, base)
    return None


class HadoopFiles:
    """Files of every filesystem that Spark knows, with its settings and credentials."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._settings = spark._jsparkSession.sessionState().newHadoopConf()

    def names(self, folder: str) -> Sequence[str]:
        with self._at(folder) as (system, at):
            return sorted(each.getPath().getName() for each in system.listStatus(at)) if system.exists(at) else []

    def below(self, folder: str) -> Sequence[str]:
        with self._at(folder) as (system, at):
            if not system.exists(at):
                return []
            root = system.makeQualified(at).toUri().getPath().rstrip("/") + "/"
            found, paths = system.listFiles(at, True), []
            while found.hasNext():
                paths.append(found.next().getPath().toUri().getPath().removeprefix(root))
        return sorted(filter(_is_visible, paths))

    def read(self, folder: str, path: str) -> Iterator[bytes]:
        with self._at(f"{folder}/{path}") as (system, at):
            stream = system.open(at)
            try:
                while chunk := bytes(stream.readNBytes(_CHUNK_BYTES)):
                    yield chunk
            finally:
                stream.close()

    def write(self, folder: str, path: str, content: Iterable[bytes]) -> None:
        with self._at(f"{folder}/{path}") as (system, at):
            stream = system.create(at, True)
            try:
                for chunk in content:
                    stream.write(bytearray(chunk))
            finally:
                stream.close()

    def rename(self, path: str, to: str) -> None:
        target = self._jvm.org.apache.hadoop.fs.Path(to)
        with self._at(path) as (system, at):
            system.mkdirs(target.getParent())
            if not system.rename(at, target):
                raise OSError(f"it was not renamed to {shown_url(to)}: run the same command again")

    def remove(self, path: str) -> None:
        with self._at(path) as (system, at):
            system.delete(at, True)

    def exists(self, path: str) -> bool:
        with self._at(path) as (system, at):
            return bool(system.exists(at))

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[Any, Any]]:
        """Its filesystem and its path, as Java has them. What Java says is raised as Retriable."""
        from py4j.protocol import Py4JError, Py4JJavaError

        with _reaching(path):
            try:
                at = self._jvm.org.apache.hadoop.fs.Path(path)
                yield at.getFileSystem(self._settings), at
            except Py4JError as error:
                said = error.java_exception if isinstance(error, Py4JJavaError) else error
                raise OSError(str(said).splitlines()[0]) from error


def _is_visible(path: str) -> bool:
    return not path.rpartition("/")[2].startswith(".")


@contextmanager
def _reaching(path: str, writes: bool = False) -> Iterator[None]:
    """What a filesystem says of the path, as an error of ours."""
    try:
        yield
    except OSError as error:
        at, said = shown_url(path), said_without(path, error.strerror or str(error))
        if not writes or error.errno is None:
            doing = "read" if error.errno is not None else "read or written"
            raise Retriable("savepoint-unreadable", f"{at} cannot be {doing}: {said}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfResources(
                "savepoint-disk-full", f"{at} cannot be written: {said}. Make room, then try again"
            ) from error
        raise ConfigError("file-unwritable", f"{at} cannot be written: {said}") from error
