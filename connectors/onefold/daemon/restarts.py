"""When a pipeline that has failed is started again."""

from __future__ import annotations

from collections import deque

from onefold.pipeline import Restart

__all__ = ["Restarts"]


class Restarts:
    """Counts a pipeline's failures. Times are seconds of one clock."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._in_a_row = 0
        self._failures: deque[float] = deque()

    def delay_s(self, began_s: float, failed_s: float) -> float | None:
        """How long to wait before the next start; None: there is none. The query began to run at `began_s`, and failed;
        one that could not start begins as it fails."""
        policy = self._policy
        if failed_s - began_s >= policy.healthy_s:
            self._in_a_row = 0
        self._in_a_row += 1
        self._failures.append(failed_s)
        while self._failures and self._failures[0] <= failed_s - policy.interval_s:
            self._failures.popleft()
        too_often = policy.failures_max is not None and len(self._failures) > policy.failures_max
        too_many = policy.attempts is not None and self._in_a_row > policy.attempts
        if policy.strategy == "none" or too_often or too_many:
            return None
        if policy.strategy == "fixed_delay":
            return policy.delay_s
        return min(policy.delay_s * 2.0 ** min(self._in_a_row - 1, 60), policy.delay_max_s)
