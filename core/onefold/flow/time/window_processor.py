"""Functions of all rows of a window, as users write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa

from onefold.flow.time.triggers import WindowBounds

__all__ = ["WindowContext", "WindowProcessor"]


class WindowContext(Protocol):
    """What a window's function sees beside the rows.

    watermark_us  the one by which the epoch's rows are judged; at an epoch's end that one
    now_ms        the epoch's time
    state         what it remembers of this key and window, until the window closes: plain Python values by name. For
                  functions that say `keeps_state = True`
    key_state     the same of the key, for good
    """

    watermark_us: int
    now_ms: int

    @property
    def state(self) -> dict[str, Any]: ...

    @property
    def key_state(self) -> dict[str, Any]: ...


class WindowProcessor(ABC):
    """What is made of all rows of a window when it fires: subclass it. It is one for all windows.

    keeps_state  it uses `at.state`, which sessions do not have, as they may become one
    """

    keeps_state: bool = False

    @abstractmethod
    def process(
        self, key: tuple[Any, ...], window: WindowBounds, rows: pa.RecordBatch, at: WindowContext
    ) -> Iterable[Any] | None:
        """The rows that it gives, tuples or dicts of the columns that were declared, and `Side("late", row)` for side
        outputs. The window's rows come in the order of their arrival, at least one."""

    def clear(self, key: tuple[Any, ...], window: WindowBounds, at: WindowContext) -> None:
        """The window closes: after this its state is gone."""
        del key, window, at
