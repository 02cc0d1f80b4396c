"""Errors that functions of users raise, with the operator, the function's line, and the key or row."""

from __future__ import annotations

import errno
import os
import site
import sysconfig
import traceback
from types import TracebackType

from onefold.core.errors import OnefoldError, Terminal
from onefold.core.values.plain import plain
from onefold.flow.rows import OF

__all__ = ["operator_failed"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATHS = sysconfig.get_paths()
_FOLDERS = (_PATHS["stdlib"], _PATHS["platstdlib"], *site.getsitepackages(), site.getusersitepackages())
_INSTALLED = ("<frozen", *(folder + os.sep for folder in _FOLDERS))


def operator_failed(name: str, error: BaseException) -> BaseException:
    """The error of an operator for one that came out of it. Errors of onefold's own, and of a machine without room or
    without a package, say themselves what is wrong."""
    is_of_machine = isinstance(error, MemoryError | ImportError) or getattr(error, "errno", None) in _NO_ROOM
    if isinstance(error, OnefoldError) or is_of_machine:
        return error
    of = next((f", {each}" for each in getattr(error, "__notes__", ()) if each.startswith(OF)), "")
    at = _place(error.__traceback__)
    return Terminal(
        "operator-failed",
        f"a function of {name} has raised {type(error).__name__}{at}{of}: {plain(str(error))}. Correct"
        " the function, or filter such rows before it",
    )


def _place(found: TracebackType | None) -> str:
    """The innermost line of the user's own code, else the outermost below ours: a package gives the function."""
    below = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(found)
        if not frame.f_globals.get("__name__", "").startswith("onefold.")
    ]
    own = [each for each in below if not each[0].startswith(_INSTALLED)]
    if not below:
        return ""
    file, line, function = own[-1] if own else below[0]
    return f" at {file}:{line} in {function}"
