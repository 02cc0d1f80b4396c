"""Secrets of a pipeline's file: they stand in environment variables or in files of their own, and are hidden where the
file is shown.

${NAME}         that environment variable
${file:PATH}    the content of that file, relative to the pipeline's
$${             is ${
password_file   beside `url`: the file with the password of the URL's user
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onefold.core import ConfigError
from onefold.core.values.plain import plain, shown_url

# Of Kafka's clients, libpq and Spark's settings: the names of what is a secret, and what stands before one in a text.
_NAMES = (
    r"passw|passphrase|passcode|pwd|secret|token|credential|(access|private|api|account|encryption|keystore)[._-]?key"
    r"|user\.?info|\.pem|\.sas\.|jaas|oauthbearer"
)
_SECRET = re.compile(rf"{_NAMES}|^settings\.", re.IGNORECASE)  # in a key's whole path: all of a table
_NO_SECRET = re.compile(r"password_file$")
_SAYS_SECRET = re.compile(rf"({_NAMES})\w*\s*[=:]|\bsig=|\S:\S*@", re.IGNORECASE)
_NAMED = re.compile(r"\$(\$\{)|\$\{([^}]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"([\w+.-]+://)([^/@?#]*)@")


def _is_reference(text: str) -> bool:
    found = _NAMED.fullmatch(text)
    return found is not None and found[2] is not None


def filled(value: Any, directory: Path) -> Any:
    """The file's value with all secrets in it. Raises ConfigError for one that is not there."""
    match value:
        case str():
            return _NAMED.sub(lambda found: "${" if found[1] else _secret(found[2] or "", directory), value)
        case list():
            return [filled(one, directory) for one in value]
        case dict():
            return _with_password({name: filled(one, directory) for name, one in value.items()}, directory)
        case _:
            return value


def _secret(name: str, directory: Path) -> str:
    if name.startswith("file:"):
        return _content(directory / name.removeprefix("file:"))
    if not _VARIABLE.fullmatch(name):
        raise ConfigError(
            "reference-invalid",
            f"${{{name}}} names no environment variable: ${{NAME}}, or ${{file:PATH}}; $${{ stands for the text ${{",
        )
    if (value := os.environ.get(name)) is None:
        raise ConfigError(
            "environment-variable-missing", f"${{{name}}} names an environment variable that is not set: export {name}"
        )
    return value


def _with_password(table: dict[str, Any], directory: Path) -> dict[str, Any]:
    if not isinstance(table.get("url"), str) or not isinstance(table.get("password_file"), str):
        return table
    file = table.pop("password_file")
    user = _USER.match(table["url"])
    if user is None or ":" in user[2]:
        what = "names no user" if user is None else "has a password already"
        raise ConfigError(
            "options-conflict",
            f"password_file goes with a url that names its user, and no password, as postgresql://shop@host/database:"
            f" this one {what}",
        )
    password = quote(_content(directory / file), safe="")
    return {**table, "url": f"{user[1]}{user[2]}:{password}@{table['url'][user.end() :]}"}


def _content(path: Path) -> str:
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError("file-unreadable", f"the file {path} cannot be read: {reason}") from error


def without_secrets(values: dict[str, Any]) -> Iterator[str]:
    """The values of a file, a line each, as TOML has them, without what is, or may be, a secret."""
    return (f"{key} = {_shown(key, value)}" for key, value in _values("", values))


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
        case str() if _is_reference(value) or _NO_SECRET.search(key):
            return _quoted(value)
        case _ if _SECRET.search(key.replace('"', "")):
            return _quoted("***")
        case str():
            shown = shown_url(value) if "://" in value else value
            return _quoted("***" if _SAYS_SECRET.search(shown) else shown)
        case bool() | int() | float():
            return json.dumps(value)
        case _:  # dates
            return str(value)


def _quoted(text: str) -> str:
    return plain(json.dumps(text, ensure_ascii=False))
