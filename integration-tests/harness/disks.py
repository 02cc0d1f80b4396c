"""Disks that are full: small file systems of a test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_BALLAST = "ballast"


@dataclass(frozen=True)
class SmallDisk:
    """A file system of a few megabytes, in memory."""

    folder: Path

    def fill(self) -> None:
        """Take all the room that is left."""
        with (self.folder / _BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                while True:
                    try:
                        if file.write(b"\0" * size) < size:
                            break
                    except OSError:
                        break

    def make_room(self) -> None:
        (self.folder / _BALLAST).unlink(missing_ok=True)
        subprocess.run(["mount", "-o", "remount,size=64m", self.folder], check=True)


@contextmanager
def small_disk(megabytes: int, owner: int | None = None) -> Iterator[SmallDisk]:
    """Skips the test where there is no root, who alone may mount one."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a full disk takes a file system of its own, and mounting one needs root")
    folder = Path(tempfile.mkdtemp(prefix="onefold-"))
    options = f"size={megabytes}m,mode=700,uid={os.geteuid() if owner is None else owner}"
    command = ["mount", "-t", "tmpfs", "-o", options, "onefold", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    try:
        if mounted.returncode != 0:
            pytest.skip(f"a full disk takes a file system of its own: {mounted.stderr!r}")
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)
        folder.rmdir()
