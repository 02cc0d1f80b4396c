"""The one place that waits: between an unanswered request and the next."""

from __future__ import annotations

import logging
import random
import time

from onefold.core.effects import Pause

__all__ = ["Patience"]

log = logging.getLogger("onefold")


class Patience:
    """Waits longer from try to try, up to `pause_max_s`; after `patience_s` in all it raises what it waited for."""

    def __init__(self, patience_s: float, pause_max_s: float = 5.0) -> None:
        self.patience_s = patience_s
        self.pause_max_s = pause_max_s
        self._began_s = 0.0

    def __call__(self, pause: Pause) -> None:
        now_s = time.monotonic()
        if pause.attempt == 1:
            self._began_s = now_s
        if now_s - self._began_s > self.patience_s:
            raise pause.because
        wait_s = min(0.05 * 2 ** min(pause.attempt, 10), self.pause_max_s) * random.uniform(0.5, 1.0)
        log.warning("%s waits: %s (try %d)", type(pause.waiting_for).__name__, pause.because, pause.attempt)
        time.sleep(wait_s)
