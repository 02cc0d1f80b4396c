"""Checks of states that must not happen. They raise, and unlike `assert` they also run under `python -O`."""

from __future__ import annotations

from typing import TypeVar

from onefold.core.errors import InternalError

T = TypeVar("T")


def require(holds: object, says: object) -> None:
    """Raise InternalError unless the condition holds. `says` is the rule in words, or the value that breaks it."""
    if not holds:
        raise _broken(says)


def present(value: T | None, says: object) -> T:
    """The value. Raises InternalError where it is None."""
    if value is None:
        raise _broken(says)
    return value


def _broken(says: object) -> InternalError:
    return InternalError(
        "internal-check-failed",
        f"{says}: this must not happen, and is a defect of onefold or of a connector. Please report it with this text",
    )
