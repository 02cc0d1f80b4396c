"""Bounds how many offsets a stream plans in a second: a token bucket that fills while batches run."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["BURST_S", "Rate"]

BURST_S = 60.0  # what a batch may catch up of the time that the one before took
_WHOLE_S = 1.0  # a batch waits for what a second allows, and what nobody used is kept for so long


class Rate:
    """At most `per_s` offsets a second. Over any time of t seconds, `per_s * (t + BURST_S)` at most are planned, and
    `per_s * (t + 1)` while each batch takes all that there is.

    It pickles before its first use. Times are seconds of `clock`.
    """

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._at_s: float | None = None  # when the bucket was last filled
        self._tokens = _WHOLE_S * per_s  # below 0 after a batch that had to be larger

    def wait_s(self, lag: int) -> float:
        """How long a batch of up to `lag` offsets has to wait: until a second's allowance is there, or all of it."""
        self._fill()
        return max(0.0, (min(lag, _WHOLE_S * self._per_s) - self._tokens) / self._per_s)

    def offsets_max(self) -> int:
        """How many may be planned now."""
        self._fill()
        return max(0, int(self._tokens))

    def take(self, planned: int, left: int) -> None:
        """A batch of `planned` offsets begins, and `left` stay for later ones."""
        self._tokens -= planned
        if left <= 0:
            self._tokens = min(self._tokens, _WHOLE_S * self._per_s)

    def _fill(self) -> None:
        now_s = self._clock()
        if self._at_s is not None:
            self._tokens = min(self._tokens + (now_s - self._at_s) * self._per_s, BURST_S * self._per_s)
        self._at_s = now_s
