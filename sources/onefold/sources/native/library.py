"""The compiled library, found at run time, or the reason why it is not used; and whether it is wanted."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from onefold.core.errors import ConfigError
from onefold.sources.native.building import LIBRARY, source_hash

LIBRARY_VARIABLE = "ONEFOLD_LIBRARY"  # another library than the one in this package: for the sanitizers' tests
Choice = Literal["auto", "off", "required"]
CHOICES = get_args(Choice)
VARIABLE = "ONEFOLD_COMPILED"  # what "auto" means in this process

_BUILD = "python -m onefold.sources.compiled build"


@cache
def load() -> ctypes.CDLL | str:
    """The library, if it was built from the sources that are installed here; or why it can't be used."""
    path = Path(os.environ.get(LIBRARY_VARIABLE, LIBRARY))
    try:
        if not path.exists():
            return f"it was not built ({path.name} is not there): {_BUILD}"
        library = ctypes.CDLL(str(path))
        library.onefold_source.restype = ctypes.c_char_p
        if library.onefold_source().decode() != source_hash():
            return f"{path.name} was built from another source: {_BUILD}"
    except (OSError, AttributeError) as error:
        return f"{path.name} does not load: {error}"
    return library


def check_choice(choice: str, name: str) -> None:
    """Raise `ConfigError` for a choice that isn't one."""
    if choice not in CHOICES:
        raise ConfigError("option-value", f"{name} is one of {', '.join(CHOICES)}, not {choice!r}")


def effective(choice: str) -> str:
    """The choice, or this process's where that is "auto"."""
    if choice != "auto":
        return choice
    given = os.environ.get(VARIABLE, "") or "auto"
    check_choice(given, VARIABLE)
    return given


def wanted(choice: str = "auto", find: Callable[[], ctypes.CDLL | str] = load) -> ctypes.CDLL | None:
    """The library as `find` finds it, if it is to be used. Raises `ConfigError` if it is required and can't be."""
    chosen = effective(choice)
    found = "" if chosen == "off" else find()
    if chosen == "required" and isinstance(found, str):
        raise ConfigError(
            "compiled-helper-missing",
            f"compiled_fetch or {VARIABLE} is 'required', and the compiled library cannot be used here: {found}. Build"
            " it on every machine that reads, or say 'auto'",
        )
    return None if isinstance(found, str) else found
