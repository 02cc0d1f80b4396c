"""Repeats a call that raises Retriable, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from onefold.core.errors import Retriable

__all__ = ["retry"]

T = TypeVar("T")
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0


def retry(call: Callable[[], T], patience_s: float) -> T:
    """The result of `call`, repeated while it raises `Retriable`: for `patience_s`, and at least once."""
    until_s = time.monotonic() + patience_s
    tries, pause_s = 0, _PAUSE_S_MIN
    while True:
        tries += 1
        try:
            return call()
        except Retriable as error:
            if tries > 1 and time.monotonic() + pause_s > until_s:
                raise type(error)(f"{error} (asked {tries} times within {patience_s:g} s)") from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
