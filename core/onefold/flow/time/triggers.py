"""When windows fire before their end, as users write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["EachEpoch", "Every", "Timing", "Trigger", "timing"]


@dataclass(frozen=True)
class Every:
    """At each multiple of the interval from a window's start on, once the watermark has come to it, with the rows that
    are older: for the keys that have new ones among them. And at the end."""

    interval: str

    def __str__(self) -> str:
        return f"each {self.interval}"


@dataclass(frozen=True)
class EachEpoch:
    """At the end of each epoch, for the keys and windows that got rows in it. And at the end."""

    def __str__(self) -> str:
        return "each epoch"


Trigger: TypeAlias = Every | EachEpoch


@dataclass(frozen=True)
class Timing:
    """A column that says when a result came: `early`, before the window's end, `on_time` or `late`."""


def timing() -> Timing:
    return Timing()
