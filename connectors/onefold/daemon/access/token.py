"""The token: who has it may ask the daemon and operate its pipelines."""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from onefold.core import ConfigError

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


def own_token_file() -> Path:
    """Where the daemons of this user have their token, and its commands find it, unless another file is named."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path("~/.local/state").expanduser()) / "onefold" / "api-token"


def make_own_token() -> str:
    """The token of this user's daemons. The first one that starts makes it, in a file that only this user reads."""
    try:
        file = own_token_file()
        file.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not file.exists():
            with NamedTemporaryFile("w", dir=file.parent) as made:  # 0600
                made.write(f"{secrets.token_hex(32)}\n")
                made.flush()
                os.fsync(made.fileno())
                with suppress(FileExistsError):  # of another daemon that starts now
                    os.link(made.name, file)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        raise ConfigError(
            "token-unkept",
            f"the API's token cannot be kept where this user's daemons have theirs: {error}. Name a file that has one"
            " (--token-file), or a folder for this user's state (XDG_STATE_HOME)",
        ) from error
    return read_own_token(file)


def read_own_token(file: Path) -> str:
    """The token in this user's own file. Raises ConfigError where others could have written it, or can read it."""
    try:
        is_ours = all(_is_ours(path.lstat(), others) for path, others in ((file.parent, 0o022), (file, 0o077)))
    except OSError as error:
        raise ConfigError("file-unreadable", f"the token's file {file} cannot be read: {error}") from error
    if not is_ours:
        raise ConfigError(
            "token-exposed",
            f"other users may read or replace the token's file {file}: remove it, have its folder be this user's own"
            " (mode 700), and start the daemon again, which makes another",
        )
    return read_token(file)


def _is_ours(found: os.stat_result, others: int) -> bool:
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & others
