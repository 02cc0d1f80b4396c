"""How a job ends: one line for the error that ended it, and README's exit code. And what a job says while it runs."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from onefold.core import OnefoldError

__all__ = ["exit_codes", "is_of_py4j", "show_progress"]

log = logging.getLogger("onefold")


@contextmanager
def exit_codes() -> Iterator[None]:
    """Ends the process with an error's exit code, and one line on stderr. It decorates functions, too.

        with exit_codes():
            spark = SparkSession.builder.getOrCreate()
            ...
            pipeline.await_termination(query)

    That is for errors of onefold, for Spark's where they carry one, and for a JVM that was killed (75). Any other
    exception stays what it is: a traceback, and 1. With ONEFOLD_DEBUG set, or logging at DEBUG, the traceback comes
    before the line. Where logging is not configured, what onefold logs goes to stderr: each epoch is a line, and on a
    terminal one line shows the last epoch. It imports no Spark, which the script of a flow may do without.
    """
    show_progress()
    try:
        yield
    except Exception as error:
        for handler in logging.getLogger().handlers:
            handler.flush()
        found = _meaning(error)
        if found is None:
            raise
        if os.environ.get("ONEFOLD_DEBUG") or log.isEnabledFor(logging.DEBUG):
            traceback.print_exception(error)
        print(f"{type(found).__name__}: {found}", file=sys.stderr)
        sys.exit(found.exit_code)


def _meaning(error: Exception) -> OnefoldError | None:
    """The onefold error behind an exception; None where there is none."""
    if isinstance(error, OnefoldError):
        return error
    if (
        sys.modules.get("pyspark") is None
    ):  # the script of a flow on this machine needs no Spark, and has no error of it
        return None
    from onefold.spark.errors.failures import carried

    return carried(error)


def is_of_py4j(record: logging.LogRecord) -> bool:
    """Whether it is py4j's own word, with a traceback, on a JVM that was killed or a batch that failed: the error that
    ends the job says it."""
    return record.name.startswith("py4j")


class _Console(logging.Handler):
    """Prints messages as they come. On a terminal an epoch's message takes the place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream, self._is_terminal, self._is_open = stream, stream.isatty(), False
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def filter(self, record: logging.LogRecord) -> bool:
        return not is_of_py4j(record)

    def emit(self, record: logging.LogRecord) -> None:
        stays = not self._is_terminal or record.name != "onefold.epochs"
        before, after = "\r\x1b[K" if self._is_open else "", "\n" if stays else ""
        self._is_open = not stays
        print(f"{before}{self.format(record)}", end=after, file=self._stream, flush=True)

    def flush(self) -> None:
        """Ends the line that shows the last epoch."""
        if self._is_open:
            self._is_open = False
            print(file=self._stream, flush=True)


def show_progress() -> None:
    """What onefold logs goes to stderr, unless logging is configured. On a terminal one line shows the last epoch."""
    if logging.getLogger().handlers or log.handlers:
        return
    logging.getLogger().addHandler(_Console(sys.stderr))
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
