"""Where in a user's own code something was raised, of all the lines of a traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import onefold
from onefold.core.values.plain import plain

__all__ = ["place"]

_OF_SPARK = re.compile(r"/(?:pyspark|py4j)(?:[-\w.]*\.zip)?/")
_INSTALLED = re.compile(r"^<frozen |/(?:site|dist)-packages/|/lib/python3\.\d+/")


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


def _is_runtime(file: str) -> bool:
    return bool(_OF_SPARK.search(file)) or file.startswith(
        (*(path + os.sep for path in onefold.__path__), "<frozen runpy>")
    )
