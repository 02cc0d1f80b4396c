"""How a job ends: one line for the error that ended it, and README's exit code. And what a job says while it runs."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from onefold.core import OnefoldError
from onefold.store.job import logs

log = logging.getLogger("onefold")

_INTERRUPTED = 130  # as a shell says it


@contextmanager
def exit_codes() -> Iterator[None]:
    """Ends the process with an error's exit code, and one line on stderr. It decorates functions, too.

        with exit_codes():
            spark = SparkSession.builder.getOrCreate()
            ...
            flow.start(spark, checkpoint=...).await_termination()

    That is for errors of onefold, for Spark's where they carry one, and for a JVM that was killed (75). Ctrl-C is 130;
    while `await_termination` waits for a query, it ends that after its epoch instead. Any other exception stays what it
    is: a traceback, and 1. With ONEFOLD_DEBUG set, or logging at DEBUG, the traceback comes before the line. Where
    logging is not configured, what onefold logs goes to stderr: each epoch is a line, and on a terminal one line shows
    the last epoch. It imports no Spark, which the script of a flow may do without.
    """
    show_progress()
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
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
    if sys.modules.get("pyspark") is None:  # the script of a flow on this machine has no error of Spark's
        return None
    from onefold.spark.errors.failures import carried

    return carried(error)


def is_of_py4j(record: logging.LogRecord) -> bool:
    """Whether it is py4j's own word, with a traceback, on a JVM that was killed or a batch that failed: the error that
    ends the job says it."""
    return record.name.startswith("py4j")


def show_progress(is_alone: bool = True) -> None:
    """What onefold logs goes to stderr, and py4j's own tracebacks go nowhere, unless logging is configured. `is_alone`:
    no other process shows its progress there."""
    if (console := logs.show_progress()) is not None:
        console.is_alone = is_alone
        console.addFilter(lambda record: not is_of_py4j(record))
