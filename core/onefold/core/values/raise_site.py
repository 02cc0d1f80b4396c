"""Where in a user's own code something was raised, of all the lines of a traceback."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable

import onefold
from onefold.core.values.plain import plain

__all__ = ["place", "raised_at"]

_OF_SPARK = re.compile(r"/(?:pyspark|py4j)(?:[-\w.]*\.zip)?/")
# In packages: also what was compiled of Cython, whose path is none of this machine.
_INSTALLED = re.compile(r"^<frozen |/(?:site|dist)-packages/|/lib/python3\.\d+/|\.p(?:xi|yx)$")


def place(frames: Iterable[tuple[str, int | str, str]]) -> str:
    """` at FILE:LINE in FUNCTION` of these frames, outermost first; empty where there is none.

    It is the innermost line of the user's own code. Where all of it is in packages, one of them is the function that
    was given: the outermost line below onefold's and Spark's.
    """
    below = [frame for frame in frames if not _is_runtime(frame[0])]
    own = [frame for frame in below if not _INSTALLED.search(frame[0])]
    if not below:
        return ""
    file, line, function = own[-1] if own else below[0]
    return plain(f" at {file}:{line} in {function}")


def raised_at(error: BaseException) -> str:
    """The same of where an error was raised."""
    found = traceback.extract_tb(error.__traceback__)
    return place((frame.filename, frame.lineno or 0, frame.name) for frame in found)


def _is_runtime(file: str) -> bool:
    return bool(_OF_SPARK.search(file)) or file.startswith(
        (*(path + os.sep for path in onefold.__path__), "<frozen runpy>")
    )
