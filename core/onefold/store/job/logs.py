"""What a job logs: which pipeline, generation and epoch a line is about, and where it goes when nobody says.

The fields are context variables, so that pipelines of one process keep theirs apart: each runs in threads of its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TextIO

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
    """Prints messages as they come. On a terminal an epoch's message takes the place of the one before, unless another
    line is shown there."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.is_alone = True  # whether no other process shows its progress there
        self.has_line = False  # whether `show` is called while epochs are run
        self._stream, self._is_open = stream, False
        self._process = os.getpid()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not self.is_terminal or record.name != "onefold.epochs":
            self._write(f"{self.format(record)}\n", is_open=False)
        elif not self.has_line:
            # What moves along is read now: no time stands before it.
            self._write(self._cut(record.getMessage()), is_open=True)

    def show(self, line: str) -> None:
        """In the place of the line that was shown last; an empty one takes that away. For a terminal."""
        with self.lock or nullcontext():
            if line or self._is_open:
                self._write(self._cut(line), is_open=bool(line))

    def _cut(self, line: str) -> str:
        """One line of the terminal: what is longer would begin a second one, which stays."""
        columns, rows = 0, 0
        with suppress(OSError, ValueError):  # stdout may be none, and is asked first
            columns, rows = os.get_terminal_size(self._stream.fileno())
        return line[: shutil.get_terminal_size((columns or 80, rows)).columns - 1]

    def _write(self, text: str, is_open: bool) -> None:
        is_forked = os.getpid() != self._process  # then the line that moves along is another process's
        before = "\r\x1b[K" if self.is_terminal and (self._is_open or is_forked) else ""
        self._is_open = is_open
        with suppress(OSError):  # its reader is gone, or the disk is full: that ends no pipeline
            self._stream.write(before + text)  # in one piece: other processes write here, too
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
def showing_progress() -> Iterator[Console | None]:
    """`show_progress` for a block, after which logging is as it was. Gives what shows it, which may have been there."""
    level = log.level
    console = show_progress()
    try:
        yield console or next((each for each in logging.getLogger().handlers if isinstance(each, Console)), None)
    finally:
        if console is not None:
            console.flush()
            logging.getLogger().removeHandler(console)
            log.setLevel(level)
