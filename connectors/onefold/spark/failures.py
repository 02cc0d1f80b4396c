"""Errors that crossed Spark as text, made errors again."""

from __future__ import annotations

import re

from onefold.core import OnefoldError, Retriable, errors

__all__ = ["from_spark"]

_RAISED = re.compile(r"^(?:onefold\.core\.errors|onefold\.\S+)\.([A-Z]\w+): (.*)$", re.MULTILINE)


def from_spark(error: Exception) -> OnefoldError:
    """The onefold error inside a Spark exception's text, by its class name; `Retriable` if none of ours is there.

    A job that fails for another reason (an executor lost, a fetch failed) may be run again: nothing was decided.
    """
    text = str(error)
    found = _RAISED.findall(text)
    for name, message in reversed(found):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, OnefoldError):
            return kind(message)
    first = text.strip().split("\n", 1)[0]
    return Retriable(f"the Spark job failed: {first}")
