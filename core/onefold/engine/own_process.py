"""Keeps a process that a user's function forks from going on as the one that it is a copy of."""

from __future__ import annotations

import os
import sys

_STATUS = 1


class OwnProcess:
    """The process in which it is made. A copy of it has the same connections, and would write what the first one writes
    as well."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self) -> None:
        """Ends any other process, at once: it flushes and closes nothing, since all that it has is the first one's."""
        if os.getpid() != self._pid:
            if sys.stderr is not None:
                told = (
                    f"onefold: process {os.getpid()} ends here: a function of the flow has forked it, and it returned"
                    f" into process {self._pid}'s work. Let it end by os._exit() where its own work is done\n"
                )
                os.write(2, told.encode())
            os._exit(_STATUS)
