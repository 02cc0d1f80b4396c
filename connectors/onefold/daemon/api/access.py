"""What the daemon and its clients agree on: the token, where it may go in clear, and the header of changes."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from onefold.core import ConfigError

__all__ = ["HEADER", "is_loopback", "read_token"]

HEADER = "X-Onefold"
_TOKEN_CHARACTERS_MIN = 16


def is_loopback(host: str) -> bool:
    """Whether what is sent to this host, by its name or its address, does not leave this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: Path) -> str:
    """The token in a file. Raises ConfigError where there is none that could be one."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("file-unreadable", f"the token's file {file} cannot be read: {error}") from error
    if len(token) < _TOKEN_CHARACTERS_MIN or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            "token-unusable",
            f"the file {file} has no token that can be used: {_TOKEN_CHARACTERS_MIN} visible ASCII characters or more,"
            " as `openssl rand -hex 32` prints them",
        )
    return token
