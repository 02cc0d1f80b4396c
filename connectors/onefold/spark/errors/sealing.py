"""Seals the onefold errors that cross from Spark's Python processes to the driver as text: no record can forge one.

A worker's error comes back as a traceback, which may quote records, SQL and other code's messages. So a worker prints
each onefold error with a seal: its class, code and message between two marks that are made of a key. The driver makes
the key, and passes it to Spark's processes in their environment, where records and queries cannot read it.

Each class has its own marks: marks that were read in a log can repeat that class, and no other.
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

__all__ = ["marks", "opened", "seal", "share_key"]

_VARIABLE = "ONEFOLD_ERRORS_KEY"
_KINDS: list[type[OnefoldError]] = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]

_key = os.environ.get(_VARIABLE) or secrets.token_hex(32)


def share_key(spark: SparkSession) -> None:
    """Give the key to the processes that Spark starts from now on."""
    with suppress(PySparkException):  # Spark Connect has no context here: errors come back without their classes
        spark.sparkContext.environment[_VARIABLE] = _key


def marks(kind: type[OnefoldError]) -> tuple[str, str]:
    """The marks before and after an error of that class: its code, a space, and its message."""
    mark = hmac.new(_key.encode(), kind.__name__.encode(), hashlib.sha256).hexdigest()[:32]
    return f"[[onefold {kind.__name__} {mark}]]", f"[[/{mark}]]"


def opened(text: str) -> OnefoldError | None:
    """The last error in a text that a process with the key has sealed."""
    at, last = max(((text.rfind(marks(kind)[0]), kind) for kind in _KINDS), key=lambda found: found[0])
    if at < 0:
        return None
    before, behind = marks(last)
    code, _, message = text[at + len(before) :].split(behind, 1)[0].partition(" ")
    return last(code, message)


def seal(error: OnefoldError) -> list[str]:
    """The lines that its traceback ends with."""
    before, behind = marks(next(kind for kind in type(error).__mro__ if kind in _KINDS))
    return [f"{before}{error.code} {error.message}{behind}"]


if _VARIABLE in os.environ:  # one of those processes: notes are what a traceback prints below an error's message
    setattr(OnefoldError, "__notes__", property(seal))  # noqa: B010 - no list, as type checkers know it
