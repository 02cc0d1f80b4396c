"""What a power cut leaves of a folder: what was synced, and of the rest whatever the disk happened to have by then."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CALLS = ("open", "mkdir", "unlink", "replace", "fsync")


class Disk:
    """The folder's files and entries as they were last synced. `on_step` is called before each change, with how many
    syncs there were."""

    def __init__(self, root: Path) -> None:
        self.root, self.syncs = root, 0
        self.on_step: Callable[[], None] | None = None
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._held: list[int] = []  # a number is given to no other file while its own is open

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self._stepping(name, getattr(os, name)))
            try:
                yield
            finally:
                for number in self._held:
                    os.close(number)

    def after_a_cut(self, to: Path, chance: random.Random, share: float) -> None:
        """The folder as a start finds it; `share` is how probable it is for each change that was not synced to be
        there: 0 leaves none."""
        shutil.rmtree(to, ignore_errors=True)
        self._leave(self.root, self.root.stat().st_ino, to, chance, share)

    def _leave(self, now: Path | None, number: int, to: Path, chance: random.Random, share: float) -> None:
        to.mkdir()
        there = _entries(now) if now is not None else {}
        synced = self._entries.get(number, {})
        for name in there.keys() | synced.keys():
            mine = there if chance.random() < share else synced
            if name not in mine:
                continue
            inode, path = mine[name], now / name if now is not None and there.get(name) == mine[name] else None
            if inode in self._entries or (path is not None and path.is_dir()):
                self._leave(path, inode, to / name, chance, share)
            else:
                is_whole = path is not None and chance.random() < share
                content = path.read_bytes() if is_whole and path is not None else self._contents.get(inode, b"")
                (to / name).write_bytes(content)

    def _stepping(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            if (on_step := self.on_step) is not None:
                self.on_step = None  # what it does is no step
                try:
                    if name != "open" or args[1] & os.O_CREAT:
                        on_step()
                    if name == "fsync":
                        self._sync(args[0])
                finally:
                    self.on_step = on_step
            return call(*args, **named)

        return step

    def _sync(self, number: int) -> None:
        self.syncs += 1
        path = Path(f"/proc/self/fd/{number}").resolve()
        inode = os.fstat(number).st_ino
        self._held.append(os.dup(number))
        if path.is_dir():
            self._entries[inode] = dict(_entries(path))
        else:
            self._contents[inode] = path.read_bytes()


def _entries(folder: Path) -> Mapping[str, int]:
    with os.scandir(folder) as found:
        return {entry.name: entry.inode() for entry in found}
