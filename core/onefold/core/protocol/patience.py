"""How long a driver asks again: between an unanswered request and the next."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from onefold.core.errors import OnefoldError, Retriable
from onefold.core.protocol.effects import Pause
from onefold.core.waiting import Wait

PATIENCE_S = 120.0  # unless the user says otherwise

log = logging.getLogger("onefold")
T = TypeVar("T")


class Patience:
    """Waits longer from try to try, up to `pause_max_s`. Once `patience_s` have passed since the first try began, it
    raises what it waited for: no try begins later, so that the last one ends at most a try's own time after that. Time
    in which there was progress is not counted. After `end` it waits for nothing any more."""

    def __init__(self, patience_s: float, pause_max_s: float = 5.0) -> None:
        self.patience_s = patience_s
        self.pause_max_s = pause_max_s
        self.waiting_for: OnefoldError | None = None  # the error after which `retry` asks again
        self._waits: dict[str, Wait] = {}  # by what is waited for: waits nest
        self._has_ended = False

    def __call__(self, pause: Pause, asked_s: float) -> None:
        self._wait(pause.attempt, type(pause.waiting_for).__name__, pause.because, asked_s)

    def retry(self, call: Callable[[], T], doing: str, on: type[Retriable] = Retriable) -> T:
        """The answer of `call`, which is safe to repeat: asked again for as long as it raises `on`."""
        attempt, asked_s = 0, time.monotonic()
        try:
            while True:
                try:
                    return call()
                except on as error:
                    attempt += 1
                    self.waiting_for = error
                    self._wait(attempt, doing, error, asked_s)
        finally:
            self.waiting_for = None

    def end(self) -> None:
        """Also from a signal's handler: the next wait, and one that goes on, raises what it waits for."""
        self._has_ended = True

    def progressed(self, for_s: float) -> None:
        """The try that has failed now did its work for so long before: that time was no wait."""
        for wait in self._waits.values():
            wait.extend(for_s)

    def _wait(self, attempt: int, doing: str, because: OnefoldError, asked_s: float) -> None:
        """`asked_s` is when the try began that failed, on the monotonic clock."""
        if attempt == 1:
            left_s = asked_s + self.patience_s - time.monotonic()
            self._waits[doing] = Wait(left_s, pause_s=min(0.1, self.pause_max_s), pause_max_s=self.pause_max_s)
        wait = self._waits[doing]
        if wait.left_s > 0.0 and not self._has_ended:
            log.warning("%s waits: %s (try %d)", doing, because, attempt)
            wait.pause()
            if not self._has_ended:
                return
        raise because
