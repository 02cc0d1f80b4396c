"""Errors that functions of users raise, with the operator, the function's line, and the key or row."""

from __future__ import annotations

import errno

from onefold.core.errors import OnefoldError, Terminal
from onefold.core.values.plain import plain
from onefold.core.values.raise_site import raised_at
from onefold.flow.rows import OF

__all__ = ["operator_failed"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def operator_failed(name: str, error: BaseException) -> BaseException:
    """The error of an operator for one that came out of it. Errors of onefold's own, and of a machine without room or
    without a package, say themselves what is wrong."""
    is_of_machine = isinstance(error, MemoryError | ImportError) or getattr(error, "errno", None) in _NO_ROOM
    if isinstance(error, OnefoldError) or is_of_machine:
        return error
    of = next((f", {each}" for each in getattr(error, "__notes__", ()) if each.startswith(OF)), "")
    return Terminal(
        "operator-failed",
        f"a function of {name} has raised {type(error).__name__}{raised_at(error)}{of}: {plain(str(error))}. Correct"
        " the function, or filter such rows before it",
    )
