"""What a pipeline's file says, for people: without what is, or may be, a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onefold.core import ConfigError
from onefold.core.values.plain import plain, shown_url
from onefold.pipeline.file import parsed
from onefold.pipeline.secrets import NAMES_SECRET, SAYS_SECRET, is_reference

__all__ = ["definition"]

_HIDDEN = "***"
_SECRET = re.compile(rf"{NAMES_SECRET.pattern}|^settings\.", re.IGNORECASE)  # in a key's whole path: all of a table
_NO_SECRET = re.compile(r"password_file$")
_SAYS_SECRET = re.compile(rf"{SAYS_SECRET.pattern}|\S:\S*@", re.IGNORECASE)


def definition(named: str) -> tuple[str, ...]:
    """The values of a pipeline's file, one a line, as TOML has them. Secrets that are named stay names, and are not
    looked up. Of a pipeline that is defined in Python there is none, nor of a file that is gone meanwhile."""
    if not named.endswith(".toml"):
        return ()
    try:
        values = parsed(Path(named))
    except ConfigError:
        return ()
    return tuple(f"{key} = {_shown(key, value)}" for key, value in _values("", values))


def _values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All that are no tables, with their places."""
    match value:
        case dict():
            for key, one in value.items():
                name = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
                yield from _values(f"{path}.{name}" if path else name, one)
        case [dict(), *_]:
            for at, one in enumerate(value):
                yield from _values(f"{path}[{at}]", one)
        case _:
            yield path, value


def _shown(key: str, value: Any) -> str:
    match value:
        case list():
            return f"[{', '.join(_shown(key, one) for one in value)}]"
        case str() if is_reference(value) or _NO_SECRET.search(key):
            return _quoted(value)
        case _ if _SECRET.search(key.replace('"', "")):
            return _quoted(_HIDDEN)
        case str():
            shown = shown_url(value) if "://" in value else value
            return _quoted(_HIDDEN if _SAYS_SECRET.search(shown) else shown)
        case bool() | int() | float():
            return json.dumps(value)
        case _:  # dates
            return str(value)


def _quoted(text: str) -> str:
    return plain(json.dumps(text, ensure_ascii=False))
