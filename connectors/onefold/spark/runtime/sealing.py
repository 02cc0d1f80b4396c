"""What crosses from Spark's Python processes to the driver as text says whose error it is, and data cannot say it.

An error of a worker comes back as a traceback, which quotes whatever records, SQL and other people's code put in their
messages. So every onefold error that a worker prints carries a seal: its class and its message between two marks that
are made of a key. The driver makes the key, and hands it to the processes that Spark starts for it, in their
environment, where no record and no query sees it.

A class has marks of its own: whoever reads them in a log can repeat that class, and no other.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onefold.core import OnefoldError, errors

__all__ = ["marks", "opened", "share_key"]

_VARIABLE = "ONEFOLD_ERRORS_KEY"
_KINDS: list[type[OnefoldError]] = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]

_key = os.environ.get(_VARIABLE) or secrets.token_hex(32)


def share_key(spark: SparkSession) -> None:
    """The processes that Spark starts for what is made from now on know the key."""
    with suppress(PySparkException):  # Spark Connect has no context here: errors come back without their classes
        spark.sparkContext.environment[_VARIABLE] = _key


def marks(kind: type[OnefoldError]) -> tuple[str, str]:
    """What stands before and behind the message of an error of that class."""
    mark = hmac.new(_key.encode(), kind.__name__.encode(), hashlib.sha256).hexdigest()[:32]
    return f"[[onefold {kind.__name__} {mark}]]", f"[[/{mark}]]"


def opened(text: str) -> OnefoldError | None:
    """The last error in a text that a process with the key has sealed."""
    at, last = max(((text.rfind(marks(kind)[0]), kind) for kind in _KINDS), key=lambda found: found[0])
    if at < 0:
        return None
    before, behind = marks(last)
    return last(text[at + len(before) :].split(behind, 1)[0])


def _seal(error: OnefoldError) -> list[str]:
    before, behind = marks(next(kind for kind in type(error).__mro__ if kind in _KINDS))
    return [f"{before}{error}{behind}"]


if _VARIABLE in os.environ:  # one of those processes: notes are what a traceback prints below an error's message
    setattr(OnefoldError, "__notes__", property(_seal))  # noqa: B010 - no list, as type checkers know it
