"""Secrets of a pipeline's file: they stand in environment variables or in files of their own.

${NAME}         that environment variable
${file:PATH}    the content of that file, relative to the pipeline's
$${             is ${
password_file   beside `url`: the file with the password of the URL's user
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onefold.core import ConfigError

__all__ = ["NAMES_SECRET", "SAYS_SECRET", "filled", "is_reference"]

# Of Kafka's clients, libpq and Spark's settings: the names of what is a secret, and what stands before one in a text.
NAMES_SECRET = re.compile(
    r"passw|passphrase|passcode|pwd|secret|token|credential|(access|private|api|account|encryption|keystore)[._-]?key"
    r"|user\.?info|\.pem|\.sas\.|jaas|oauthbearer",
    re.IGNORECASE,
)
SAYS_SECRET = re.compile(rf"({NAMES_SECRET.pattern})\w*\s*[=:]|\bsig=", re.IGNORECASE)
_NAMED = re.compile(r"\$(\$\{)|\$\{([^}]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"([\w+.-]+://)([^/@?#]*)@")


def is_reference(text: str) -> bool:
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
