"""Errors that crossed Spark as text, made errors again."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException

from onefold.core import OnefoldError, Retriable, Terminal, errors

__all__ = ["from_spark"]

# A message may have several lines: it ends at an empty one, at the JVM's stack, at the next error, or with the text.
_RAISED = re.compile(r"^\s*onefold\.\S+\.([A-Z]\w+): (.*(?:\n(?!\s*$|\s+at |\s*onefold\.).*)*)", re.MULTILINE)

_SQLSTATE = re.compile(r"\s+SQLSTATE: \w{5}$")  # Spark's own, behind the text of an error in a data source

_OTHERS = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*)$", re.MULTILINE)


def from_spark(error: Exception) -> OnefoldError:
    """The onefold error inside a Spark exception's text, by its class name.

    Another Python exception is the job's own, `Terminal`; what else fails a job (an executor lost, a fetch failed) is
    `Retriable`: nothing was decided.
    """
    text = str(error)
    found = _RAISED.findall(text)
    for name, message in reversed(found):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, OnefoldError):
            return kind(_SQLSTATE.sub("", message))
    raised = _OTHERS.findall(text)
    if isinstance(error, AnalysisException) or (raised and "Traceback (most recent call last)" in text):
        reason = raised[-1] if raised else text.strip().split("\n", 1)[0]
        return Terminal(f"the job's own code failed: {reason}. Nothing of this batch was written; mend it, start again")
    reason = text.strip().split("\n", 1)[0]
    return Retriable(f"the Spark job failed: {reason}")
