"""What a demo runs with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BATCHES", "DemoSettings"]

BATCHES = 40


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of `onefold demo`."""

    rows: int = 2_000_000
    kills: int = 12
    delivery: str = "two_phase"
    seed: int = 1
    exactly_once: bool = True
    directory: Path = Path(".onefold/demo")
