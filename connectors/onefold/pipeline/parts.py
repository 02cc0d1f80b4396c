"""When a pipeline that has failed is started again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onefold.clients.options import options_model
from onefold.core import ConfigError
from onefold.pipeline.field_types import check_seconds, check_types

__all__ = ["Restart"]


@options_model
@dataclass(frozen=True, kw_only=True)
class Restart:
    """Whether `onefold run` starts a pipeline again whose query has failed for a reason that may pass.

    strategy     "exponential": after delay_s, then twice as long each time, up to delay_max_s; "fixed_delay": always
                 after delay_s; "none": never
    attempts     restarts in a row, at most; by default any number
    healthy_s    a query that ran for so long has not failed in a row
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
        check_types(self)
        for name in ("delay_s", "delay_max_s", "healthy_s", "interval_s"):
            check_seconds(name, getattr(self, name))
        for name in ("attempts", "failures_max"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigError("option-value", f"{name} is a number from 1 on, not {number!r}")
