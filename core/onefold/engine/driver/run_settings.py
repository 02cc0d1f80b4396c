"""How a flow is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onefold.core.protocol.epoch import Outcome
from onefold.core.restart import Restart

__all__ = ["RunSettings"]


@dataclass(frozen=True)
class RunSettings:
    """`onefold.engine.run` says what each is."""

    workers: int
    state: str
    epoch_interval_s: float
    restart: Restart
    on_outcome: Callable[[Outcome], None] | None
