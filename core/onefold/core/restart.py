"""Whether, and after how long, what has failed for a reason that may pass is started again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from onefold.core.errors import ConfigError

_SECONDS_MAX = 366 * 86_400.0
_STRATEGIES = ("exponential", "fixed_delay", "none")


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Whether a pipeline is started again that has failed for a reason that may pass.

    strategy     "exponential": after delay_s, then twice as long each time, up to delay_max_s; "fixed_delay": always
                 after delay_s; "none": never
    attempts     restarts in a row, at most; by default any number
    healthy_s    a query of Spark that ran for so long has not failed in a row; on the engine, one that has completed an
                 epoch since
    failures_max in `interval_s` seconds, at most, whichever the strategy is: a pipeline that fails more often than that
                 ends. By default any number
    """

    strategy: Literal["exponential", "fixed_delay", "none"] = "exponential"
    delay_s: float = 1.0
    delay_max_s: float = 60.0
    attempts: int | None = None
    healthy_s: float = 60.0
    failures_max: int | None = None
    interval_s: float = 300.0

    def __post_init__(self) -> None:
        if self.strategy not in _STRATEGIES:
            raise ConfigError("option-value", f"strategy is one of {', '.join(_STRATEGIES)}, not {self.strategy!r}")
        for name in ("delay_s", "delay_max_s", "healthy_s", "interval_s"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds <= _SECONDS_MAX:  # nan is neither
                raise ConfigError(
                    "option-value", f"{name} is a number of seconds above 0, a year at most, not {seconds!r}"
                )
        for name in ("attempts", "failures_max"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise ConfigError("option-value", f"{name} is a whole number from 1 on, not {number!r}")


class Restarts:
    """The failures of one run, counted."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._in_a_row = 0
        self._failed_s: deque[float] = deque()

    def delay_s(self, ran_s: float, failed_s: float) -> float | None:
        """How long to wait before the next start; None where there is none. It ran for `ran_s` until it failed, at
        `failed_s` of a clock that never goes back."""
        policy = self._policy
        if ran_s >= policy.healthy_s:
            self.completed()
        self._in_a_row += 1
        self._failed_s.append(failed_s)
        while self._failed_s[0] <= failed_s - policy.interval_s:
            self._failed_s.popleft()
        too_often = policy.failures_max is not None and len(self._failed_s) > policy.failures_max
        too_many = policy.attempts is not None and self._in_a_row > policy.attempts
        if policy.strategy == "none" or too_often or too_many:
            return None
        if policy.strategy == "fixed_delay":
            return policy.delay_s
        return min(policy.delay_s * 2.0 ** min(self._in_a_row - 1, 60), policy.delay_max_s)

    def completed(self) -> None:
        """The next failure is the first in a row."""
        self._in_a_row = 0
