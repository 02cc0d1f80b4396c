"""Values of command line options: lists, and secrets that are not on the command line itself, where `ps` shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from onefold.core import ConfigError

__all__ = ["comma_separated", "resolved", "settings_of"]

_NAMED = re.compile(r"\$\{(\w+)\}")
_SECRET = re.compile(r"password|secret|\.pem$|oauthbearer\.config")


def comma_separated(text: str) -> list[str]:
    """The parts between commas; none of an empty text."""
    return [name.strip() for name in text.split(",")] if text else []


def resolved(text: str | None) -> str | None:
    """The text with `${NAME}` replaced by that environment variable, or for `@path` the content of the file.

    Raises ConfigError for a variable that is not set and a file that cannot be read.
    """
    if text is None:
        return None
    if text.startswith("@"):
        return _read(Path(text[1:]))
    return _NAMED.sub(_variable, text)


def settings_of(given: Sequence[str]) -> dict[str, str]:
    """librdkafka's settings, each `name=value`. Raises ConfigError, also for secrets that are written out."""
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError(
                "option-value", "--setting is name=value, as in security.protocol=SSL, and one has no '='"
            )
        settings[name] = resolved(value) or ""
        if settings[name] == value and value and _SECRET.search(name):
            raise ConfigError(
                "secret-on-command-line",
                f"{name} is a secret, and every user of this machine can read it on a command line: name an environment"
                f" variable, --setting '{name}=${{NAME}}', or a file, --setting {name}=@/path",
            )
    return settings


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise ConfigError(
            "environment-variable-missing",
            f"${{{found[1]}}} names an environment variable that is not set: export {found[1]}",
        )
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError("file-unreadable", f"@{path} names a file, and it cannot be read: {reason}") from error
