"""Completes a pipeline's last epoch where no decision follows soon: else that does it."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

AFTER_S = 0.5


class Completer:
    """Calls `complete` from a thread of its own once no epoch has ended for `after_s`, and every `after_s` until it
    returns True. The thread ends then, and starts again with the next epoch."""

    def __init__(self, complete: Callable[[], bool], after_s: float = AFTER_S) -> None:
        self._complete = complete
        self._after_s = after_s
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._due_s: float | None = None  # on the monotonic clock; None where nothing is left to complete
        self._thread: threading.Thread | None = None
        self._process: int | None = None

    def epoch_ended(self) -> None:
        with self._guard:
            if self._process is None:
                self._process = os.getpid()
                atexit.register(self._at_exit)  # of a job that does not close its pipeline
            self._due_s = time.monotonic() + self._after_s
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="onefold-completer", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self._stopped.set()
        if self._process == os.getpid():  # not in a fork of the driver
            self._complete()

    def _run(self) -> None:
        while (left_s := self._left_s()) is not None:
            if self._stopped.wait(max(0.0, left_s)):
                return
            with self._guard:
                due_s = self._due_s
            if due_s is None or due_s > time.monotonic():
                continue  # another epoch has ended since
            is_done = self._complete()
            with self._guard:
                if self._due_s == due_s:
                    self._due_s = None if is_done else time.monotonic() + self._after_s

    def _left_s(self) -> float | None:
        """None where the thread has to end."""
        with self._guard:
            if self._due_s is None:
                self._thread = None
                return None
            return self._due_s - time.monotonic()
