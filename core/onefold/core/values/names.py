"""Names that users give: of columns, options, words."""

from __future__ import annotations

import difflib
from collections.abc import Collection

__all__ = ["near"]


def near(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?`, or nothing. The case of names makes no difference."""
    proper = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), list(proper), 1) if name and name not in known else []
    return f"; did you mean {proper[close[0]]!r}?" if close else ""
