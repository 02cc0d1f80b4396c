"""Secrets for the command line that are not on it, where every user of the machine could read them (`ps`)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from onefold.core import ConfigError

__all__ = ["settings_of", "told"]

_NAMED = re.compile(r"\$\{(\w+)\}")
_SECRET = re.compile(r"password|secret|\.pem$|oauthbearer\.config")


def told(text: str | None) -> str | None:
    """`${NAME}` stands for that environment variable, and `@path` as the whole text for what the file has. Raises
    ConfigError."""
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
            raise ConfigError("--setting is name=value, as in security.protocol=SSL, and one has no '='")
        settings[name] = told(value) or ""
        if settings[name] == value and value and _SECRET.search(name):
            raise ConfigError(
                f"{name} is a secret, and every user of this machine can read it on a command line: name an environment"
                f" variable, --setting '{name}=${{NAME}}', or a file, --setting {name}=@/path"
            )
    return settings


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise ConfigError(f"${{{found[1]}}} names an environment variable that is not set: export {found[1]}")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"@{path} names a file, and it cannot be read: {reason}") from error
