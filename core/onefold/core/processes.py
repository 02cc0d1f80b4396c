"""What ties a process to the one that has forked it."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["end_with"]

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """From now on this process is killed when `parent` ends, which has forked it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that was set
        os._exit(1)
