"""What a demo runs with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoSettings:
    """The options of `onefold demo`."""

    rows: int = 600_000
    kills: int = 10
    batches: int = 60
    delivery: str = "two_phase"
    seed: int = 1
    exactly_once: bool = True
    directory: Path = Path(".onefold/demo")
    html: Path | None = None  # the report; by default in the directory
