"""What a job logs: which pipeline, generation and epoch a line is about, and where it goes when nobody says.

The fields are context variables, so that pipelines of one process keep theirs apart: each runs in threads of its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TextIO

__all__ = ["Console", "current", "logged_as", "note", "show_progress", "showing_progress"]

log = logging.getLogger("onefold")

_fields: ContextVar[dict[str, object] | None] = ContextVar("onefold_log_fields", default=None)


def current() -> Mapping[str, object]:
    """The fields of what this thread is at."""
    return _fields.get() or {}


@contextmanager
def logged_as(**fields: object) -> Iterator[None]:
    """What is logged in the block has these fields, beside those from around it."""
    before = _fields.set({**current(), **fields})
    try:
        yield
    finally:
        _fields.reset(before)


def note(**fields: object) -> None:
    """From here to the end of the innermost block that is `logged_as` something, these fields too."""
    if (known := _fields.get()) is not None:
        known.update(fields)


class Console(logging.Handler):
    """Prints messages as they come. On a terminal an epoch's message takes the place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream, self._is_terminal, self._is_open = stream, stream.isatty(), False
        self._process = os.getpid()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        stays = not self._is_terminal or record.name != "onefold.epochs"
        is_forked = os.getpid() != self._process  # then the line that shows the last epoch is another process's
        before = "\r\x1b[K" if self._is_terminal and (self._is_open or is_forked) else ""
        self._is_open = not stays
        # What moves along is one line of the terminal, and is read now: no time stands before it.
        shown = self.format(record) if stays else record.getMessage()[: shutil.get_terminal_size().columns - 1]
        with suppress(OSError):  # its reader is gone, or the disk is full: that ends no pipeline
            # In one piece: other processes write here, too.
            self._stream.write(f"{before}{shown}\n" if stays else f"{before}{shown}")
            self._stream.flush()

    def flush(self) -> None:
        """Ends the line that shows the last epoch."""
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                print(file=self._stream, flush=True)


def show_progress() -> Console | None:
    """What onefold logs goes to stderr, unless logging is configured: None then. On a terminal one line shows the last
    epoch."""
    root = logging.getLogger()
    if root.handlers or log.handlers or sys.stderr is None:
        return None
    console = Console(sys.stderr)
    root.addHandler(console)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    return console


@contextmanager
def showing_progress() -> Iterator[None]:
    """`show_progress` for a block, after which logging is as it was."""
    level = log.level
    console = show_progress()
    try:
        yield
    finally:
        if console is not None:
            console.flush()
            logging.getLogger().removeHandler(console)
            log.setLevel(level)
