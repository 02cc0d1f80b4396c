"""Names: those that users give to columns, options, pipelines, and those of signals."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Collection, Iterable

import pyarrow as pa

from onefold.core.errors import ConfigError


def near(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?`, or nothing. The case of names makes no difference."""
    proper = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), list(proper), 1) if name and name not in known else []
    return f"; did you mean {proper[close[0]]!r}?" if close else ""


def signal_name(number: int) -> str:
    """SIGKILL, for one; its number where it has no name, as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def check_columns(names: Iterable[str], schema: pa.Schema, label: str) -> None:
    """Raise ConfigError for a name that no column has."""
    for name in names:
        if not isinstance(name, str):
            raise ConfigError("option-value", f"{label}: {name!r} is no column's name. Give names as texts")
        if name not in schema.names:
            told = near(name, schema.names) or f"; there are {', '.join(schema.names)}"
            raise ConfigError("no-such-column", f"{label}: there is no column {name!r}{told}")


def told_columns(schema: pa.Schema) -> str:
    """As errors show them: `id int64, amount decimal128(12, 2)`."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def check_pipeline_name(name: str) -> None:
    if not re.fullmatch(r"[^\s/\x00-\x1f\x7f-\x9f\ud800-\udfff]+", name) or len(name) > 100:
        raise ConfigError(
            "pipeline-name",
            "a pipeline's name has 1 to 100 characters, and no white space, slash or control character among them:"
            f" {name!r}",
        )
