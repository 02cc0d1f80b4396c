"""A question that is asked time and again in a thread of its own, so that nobody else waits for a server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from onefold.core import OnefoldError

__all__ = ["Look"]

log = logging.getLogger("onefold.daemon")
T = TypeVar("T")
_STALE_LOOKS = 4


class Look(Generic[T]):
    """Asks every `every_s` seconds. A server that hangs makes the answer old, and nothing else."""

    def __init__(self, what: str, ask: Callable[[], T], every_s: float) -> None:
        self.error: OnefoldError | None = None  # of the last look
        self._what, self._ask, self._every_s = what, ask, every_s
        self._answer: tuple[T, float] | None = None
        self._is_over = threading.Event()
        self._is_wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"onefold-look-{what}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    @property
    def value(self) -> T | None:
        """The last answer; None where there is none that is fresh."""
        answer = self._answer
        if answer is None or time.monotonic() - answer[1] > max(30.0, _STALE_LOOKS * self._every_s):
            return None
        return answer[0]

    def look(self) -> None:
        """Ask now, in this thread."""
        try:
            self._answer = self._ask(), time.monotonic()
            self.error = None
        except OnefoldError as error:
            self._answer = None
            if self.error is None or self.error.code != error.code:
                log.info("%s is not known: %s", self._what, error)
            self.error = error
        except Exception as error:  # of a look at most: the pipeline goes on
            self._answer = None
            log.warning("%s is not known: %s: %s", self._what, type(error).__name__, error, exc_info=error)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.look()
            self._is_over.wait(self._every_s)
