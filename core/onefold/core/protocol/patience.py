"""How long a driver asks again: between an unanswered request and the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from onefold.core.errors import OnefoldError, Retriable
from onefold.core.protocol.effects import Pause
from onefold.core.waiting import Wait

__all__ = ["Patience"]

log = logging.getLogger("onefold")
T = TypeVar("T")


class Patience:
    """Waits longer from try to try, up to `pause_max_s`; after `patience_s` in all it raises what it waited for."""

    def __init__(self, patience_s: float, pause_max_s: float = 5.0) -> None:
        self.patience_s = patience_s
        self.pause_max_s = pause_max_s
        self._waits: dict[str, Wait] = {}  # by what is waited for: waits nest

    def __call__(self, pause: Pause) -> None:
        self._wait(pause.attempt, type(pause.waiting_for).__name__, pause.because)

    def retry(self, call: Callable[[], T], doing: str) -> T:
        """The answer of `call`, which is safe to repeat: asked again for as long as it raises `Retriable`."""
        attempt = 0
        while True:
            try:
                return call()
            except Retriable as error:
                attempt += 1
                self._wait(attempt, doing, error)

    def _wait(self, attempt: int, doing: str, because: OnefoldError) -> None:
        if attempt == 1:
            self._waits[doing] = Wait(self.patience_s, pause_s=min(0.1, self.pause_max_s), pause_max_s=self.pause_max_s)
        wait = self._waits[doing]
        if wait.is_over:
            raise because
        log.warning("%s waits: %s (try %d)", doing, because, attempt)
        wait.pause()
