"""Names that users give: of columns, options, words."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

import pyarrow as pa

from onefold.core.errors import ConfigError

__all__ = ["check_columns", "near"]


def near(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?`, or nothing. The case of names makes no difference."""
    proper = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), list(proper), 1) if name and name not in known else []
    return f"; did you mean {proper[close[0]]!r}?" if close else ""


def check_columns(names: Iterable[str], schema: pa.Schema, label: str) -> None:
    """Raise ConfigError for a name that no column has."""
    for name in names:
        if not isinstance(name, str):
            raise ConfigError("option-value", f"{label}: {name!r} is no column's name. Give names as texts")
        if name not in schema.names:
            told = near(name, schema.names) or f"; there are {', '.join(schema.names)}"
            raise ConfigError("no-such-column", f"{label}: there is no column {name!r}{told}")
