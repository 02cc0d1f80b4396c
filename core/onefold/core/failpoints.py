"""Failpoints: named places where a test holds a process, to kill it, pause it or release it there.

Off, which is always outside tests, `failpoint` costs one look into an empty dict. On, through the environment
(`ONEFOLD_FAILPOINT=after:Decide#2`, `ONEFOLD_FAILPOINT_DIR=...`), the second process-local pass of `after:Decide`
writes a file `<name>.<pid>.<thread>` into the directory and waits until somebody removes that file, or kills the
process. Several places are separated by commas; `after:Decide#*` holds every pass. Once there is a file `released`, no
process is held any more, nor any that comes to its place later. `arm` names other places later on: in a
process that was forked, or that has come to the part of its life whose passes count.

`ONEFOLD_FAILPOINT_DEADLY=text` plants a fault: a process that parses a source's value with that text in it ends by
SIGSEGV, as it would by a defect of a parser's library.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

from onefold.core.waiting import Wait

RELEASED = "released"
_EVERY = -1


def _parse(text: str) -> dict[str, int]:
    """Place -> how many passes are left until the one that is held."""
    places = (place.partition("#") for place in text.split(",") if place)
    return {name: _EVERY if count == "*" else int(count or 1) for name, _, count in places}


_passes_left = _parse(os.environ.get("ONEFOLD_FAILPOINT", ""))


def arm(places: str) -> None:
    """Hold at these places of this process from now on, and at no others."""
    _passes_left.clear()
    _passes_left.update(_parse(places))


def deadly() -> bytes:
    """The text in a value at which a parser ends its process; empty outside tests."""
    return os.environ.get("ONEFOLD_FAILPOINT_DEADLY", "").encode()


def failpoint(name: str) -> None:
    """Hold here if this place is an armed one."""
    if name in _passes_left:
        _hold(name)


def _hold(name: str) -> None:
    left = _passes_left[name]
    if left != _EVERY:
        if left > 1:
            _passes_left[name] = left - 1
            return
        del _passes_left[name]  # only this pass is held
    place = f"{name.replace(':', '-')}.{os.getpid()}.{threading.current_thread().name}"
    marker = Path(os.environ["ONEFOLD_FAILPOINT_DIR"]) / place
    marker.touch()
    held = Wait(math.inf, pause_s=0.02, pause_max_s=0.02)
    while marker.exists() and not marker.with_name(RELEASED).exists():
        held.pause()
    marker.unlink(missing_ok=True)
