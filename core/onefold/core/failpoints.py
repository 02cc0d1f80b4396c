"""Named places where a test can hold a process still, to kill it, pause it or let it go on just there.

Off, which is always outside tests, `failpoint` costs one look at an empty name. On, through the environment
(`ONEFOLD_FAILPOINT=after:Decide#2`, `ONEFOLD_FAILPOINT_DIR=...`), the second process-local pass of `after:Decide`
writes a file `<name>.<pid>` into the directory and waits until somebody removes that file, or kills the process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["failpoint"]

_name, _, _count = os.environ.get("ONEFOLD_FAILPOINT", "").partition("#")
_passes_left = int(_count or 1)


def failpoint(name: str) -> None:
    """Hold here if this place is the armed one."""
    if _name and name == _name:
        _hold()


def _hold() -> None:
    global _passes_left
    _passes_left -= 1
    if _passes_left != 0:
        return
    marker = Path(os.environ["ONEFOLD_FAILPOINT_DIR"]) / f"{_name.replace(':', '-')}.{os.getpid()}"
    marker.touch()
    while marker.exists():
        time.sleep(0.02)
