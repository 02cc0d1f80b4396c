"""Files of this machine that outlive a crash of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

__all__ = ["make_folder", "sync_folder", "write_file"]


def write_file(path: Path, content: Iterable[bytes | pa.Buffer]) -> None:
    """Write a file, and make its folder. Its content and its name are on the disk when this returns."""
    make_folder(path.parent)
    with path.open("wb") as file:
        for chunk in content:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def make_folder(at: Path) -> None:
    """Make a folder, and all above it, so that it stays."""
    if not at.is_dir():
        make_folder(at.parent)
        at.mkdir(exist_ok=True)
        sync_folder(at.parent)


def sync_folder(folder: Path) -> None:
    """The names in the folder are on the disk as they are now."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
