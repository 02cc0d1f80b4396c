"""Files of this machine that outlive a crash of it, and that are their user's alone: what is made has the modes 0600
and 0700, and no link that somebody has laid there is written through. What others may have made is not believed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.core.waiting import Wait

if TYPE_CHECKING:
    import pyarrow as pa

FILE_MODE, FOLDER_MODE = 0o600, 0o700
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A FIFO would be waited for, and is no file: it is opened without that, and then refused.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEPTH_MAX = 30  # what onefold and Spark make has some six
_NO_FILE = "it is no file, or a link, which is not followed"


def write_file(path: Path, content: Iterable[bytes | pa.Buffer]) -> None:
    """Write a file, in the place of one that is there, and make its folder. Its content and its name are on the disk
    when this returns."""
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    _write(os.open(path, NEW, FILE_MODE), content)
    sync_folder(path.parent)


def opened(path: Path | str, folder: int | None = None) -> int:
    """A file's descriptor, to read it; `path` is one within `folder`, where that is given. Raises OSError for a link,
    and for what is no file."""
    try:
        number = os.open(path, _READ, dir_fd=folder)
    except OSError as error:
        raise _named(error) from None
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise OSError(errno.ELOOP, _NO_FILE)


def opened_below(root: Path | str, name: str) -> int:
    """As `opened`, of a file below `root`, whose name has `/` between its parts: none of them may be a link."""
    folders, _, last = name.rpartition("/")
    number = entered(root, folders)
    try:
        return opened(last, number)
    finally:
        os.close(number)


def entered(root: Path | str, folders: str, makes: bool = False) -> int:
    """The descriptor of a folder below `root`, which may be a link itself; from there on none is followed. `makes`
    makes those that are missing. Raises OSError."""
    number = os.open(root, _FOLDER)
    try:
        for each in folders.split("/") if folders else ():
            inner = _inner(number, each, makes)
            os.close(number)
            number = inner
    except BaseException:
        os.close(number)
        raise
    return number


def files_below(root: Path | str, folder: str = "") -> Iterator[str]:
    """The names, from `root` on, of the files in a folder below it and in that one's folders, without those that are
    nested deeper than `_DEPTH_MAX`; none where there is no folder. Links are no files and no folders."""
    folders = [folder]
    while folders:
        at = folders.pop()
        try:
            number = entered(root, at)
        except FileNotFoundError:
            continue
        try:
            with os.scandir(number) as entries:
                found = [
                    (f"{at}/{entry.name}" if at else entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
                ]
        finally:
            os.close(number)
        folders += [name for name, is_folder in found if is_folder and name.count("/") < _DEPTH_MAX]
        yield from (name for name, is_folder in found if not is_folder)


def make_folder(at: Path) -> None:
    """Make a folder, and all above it, so that it stays."""
    if not at.is_dir():
        make_folder(at.parent)
        at.mkdir(FOLDER_MODE, exist_ok=True)
        sync_folder(at.parent)


def sync_folder(folder: Path) -> None:
    """The names in the folder are on the disk as they are now."""
    number = os.open(folder, _FOLDER)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class OwnFolder:
    """The folder `name` in `root`, and files below it, whose names have `/` between their parts.

    `root` may be a link of its user's; from there on no link is followed, so that nothing is read, written or removed
    elsewhere, whoever else may write there. Raises OSError.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name

    def write(self, name: str, content: Iterable[bytes | pa.Buffer], synced: bool = True) -> None:
        """Write a new file. Where that fails, nothing is left of it."""
        with self._within(name, makes=True) as (folder, last):
            number = os.open(last, NEW, FILE_MODE, dir_fd=folder)
            try:
                _write(number, content, synced)
            except BaseException:
                with suppress(OSError):
                    os.unlink(last, dir_fd=folder)
                raise
            if synced:
                os.fsync(folder)

    def read(self, name: str, offset: int, length: int | None) -> bytes:
        with self._within(name) as (folder, last), os.fdopen(opened(last, folder), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(size + offset, 0) if offset < 0 else offset
            left = max(size - begin, 0)
            file.seek(begin)
            return file.read(left if length is None else min(length, left))

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """In bytes; None where no file is there."""
        return {name: self._size(name) for name in names}

    def below(self, folder: str) -> Iterator[str]:
        prefix = f"{self._name}/"
        return (name.removeprefix(prefix) for name in files_below(self._root, f"{prefix}{folder}".rstrip("/")))

    def remove(self, name: str) -> None:
        with self._within(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def replace(self, name: str, content: bytes, synced: bool = True) -> None:
        """A reader sees the old content or the new one; after a power cut maybe neither, where it was not synced.
        Called under `locked`."""
        temporary = f"{name}.tmp"  # one name: callers have the lock
        with suppress(FileNotFoundError):
            self.remove(temporary)
        self.write(temporary, [content], synced)
        with self._within(name) as (folder, last):
            os.replace(f"{last}.tmp", last, src_dir_fd=folder, dst_dir_fd=folder)
            if synced:
                os.fsync(folder)

    def lock(self, within_s: float) -> int:
        """The descriptor that holds the folder's lock, until it is closed. Raises TimeoutError where another process
        holds it for so long."""
        with self._within("lock", makes=True) as (folder, last):
            try:
                number = os.open(last, _LOCK, FILE_MODE, dir_fd=folder)
            except OSError as error:
                raise _named(error) from None
        try:
            wait = Wait(within_s)
            while not _is_locked(number):
                if not wait.again():
                    raise TimeoutError
        except BaseException:
            os.close(number)
            raise
        return number

    def _size(self, name: str) -> int | None:
        try:
            with self._within(name) as (folder, last):
                found = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    @contextmanager
    def _within(self, name: str, makes: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that has the file, and the file's own name there."""
        require(all(part not in ("", "..") for part in name.split("/")), f"{name!r} is no file's name here")
        if makes:
            make_folder(self._root)
        folders, _, last = f"{self._name}/{name}".rpartition("/")
        number = entered(self._root, folders, makes)
        try:
            yield number, last
        finally:
            os.close(number)


def _inner(folder: int, name: str, makes: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not makes:
            raise
    except NotADirectoryError:
        raise NotADirectoryError(errno.ENOTDIR, f"{name!r} is a link or no folder, which is not followed") from None
    with suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _write(number: int, content: Iterable[bytes | pa.Buffer], synced: bool = True) -> None:
    with os.fdopen(number, "wb") as file:
        for chunk in content:
            file.write(chunk)
        file.flush()
        if synced:
            os.fsync(number)


def _is_locked(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named(error: OSError) -> OSError:
    return OSError(error.errno, _NO_FILE) if error.errno == errno.ELOOP else error


def check_folder(path: Path) -> None:
    """Raises ConfigError where another user, or every user, may make files beside this one, and take it away."""
    try:
        found = path.parent.stat()
    except OSError:
        return
    if found.st_mode & stat.S_IWOTH or found.st_uid not in (os.geteuid(), 0):
        who = "every user of this machine" if found.st_mode & stat.S_IWOTH else f"user {found.st_uid}, whose it is,"
        raise ConfigError(
            "folder-not-trusted",
            f"{path} is in a folder that {who} can write to, and could be another's file: name one in a folder of your"
            " own",
        )


def check_owner(path: Path) -> None:
    """Raises ConfigError where another user has made the file or folder, or the link in its place, or every user may
    write to it. Where nothing is, it is made now."""
    try:
        found = path.lstat()
    except OSError:
        return
    is_open = found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode)
    if is_open or found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            "file-not-trusted",
            f"{path} belongs to user {found.st_uid}, or every user may write to it: what it says may be anybody's. Move"
            " it away, or give it to the user that runs this (chown, chmod o-w)",
        )
