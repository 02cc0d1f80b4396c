"""A question that is asked time and again in a thread of its own, so that nobody else waits for a server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from onefold.core import OnefoldError

log = logging.getLogger("onefold.daemon")
T = TypeVar("T")
_STALE_LOOKS = 4
_FRESH_S = 30.0
_REST = 9  # times as long as the answer took


class Poller(Generic[T]):
    """Asks every `every_s` seconds; where answers take long, less often. A server that hangs makes the answer old, and
    nothing else."""

    def __init__(self, what: str, ask: Callable[[], T], every_s: float) -> None:
        self.error: OnefoldError | None = None  # of the last look
        self._what, self._ask, self._every_s = what, ask, every_s
        self._rests_s = every_s
        self._answer: tuple[T, float] | None = None
        self._is_over = threading.Event()
        self._is_wanted = threading.Event()
        self._wanted_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"onefold-look-{what}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It asks no more. A question that was asked may go on."""
        self._is_over.set()
        self._is_wanted.set()

    def join(self, within_s: float) -> None:
        self._thread.join(max(0.0, within_s))

    @property
    def value(self) -> T | None:
        """The last answer, while it is fresh; else None."""
        answer = self._answer
        return answer[0] if answer is not None and self._is_fresh(answer[1]) else None

    def since(self, at_s: float | None) -> T | None:
        """The answer, if it was asked for after that moment; until there is one, None, and it is asked for at once."""
        answer = self._answer
        if at_s is None or (answer is not None and answer[1] >= at_s):
            return self.value
        if self._wanted_since_s != at_s:
            self._wanted_since_s = at_s
            self._is_wanted.set()
        return None

    @property
    def has_answer(self) -> bool:
        """Whether there is an answer, and a fresh one. It may be None."""
        answer = self._answer
        return answer is not None and self._is_fresh(answer[1])

    def _is_fresh(self, at_s: float) -> bool:
        return time.monotonic() - at_s <= max(_FRESH_S, _STALE_LOOKS * self._rests_s)

    def look(self) -> None:
        """Ask now, in this thread."""
        try:
            asked_s = time.monotonic()
            self._answer = self._ask(), asked_s
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
            self._is_wanted.clear()
            asked_s = time.monotonic()
            self.look()
            took_s = 0.0 if self.error is not None else time.monotonic() - asked_s  # a server that is away: soon again
            self._rests_s = max(self._every_s, _REST * took_s)
            self._is_wanted.wait(self._rests_s)
