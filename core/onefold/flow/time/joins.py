"""What joins go by: which rows of two inputs belong together, by their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

How: TypeAlias = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Within:
    """A row with those of the other input whose times are from `before_us` before its own to `after_us` after it."""

    before_us: int
    after_us: int


@dataclass(frozen=True)
class AsOf:
    """A row with the newest row of the other input whose time is not after its own."""


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the inputs.

    key    its columns of the key, in the order of the other's
    on     the column of its rows' time; of an `is_end` the rows are older, as the results of windows are
    taken  its further columns, and what they are called in what comes out
    """

    key: tuple[str, ...]
    on: str
    is_end: bool
    taken: tuple[tuple[str, str], ...]
