"""Functions of all rows of a window, as users write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import pyarrow as pa

from onefold.flow.time.triggers import WindowBounds, WindowContext


class WindowProcessor(ABC):
    """What is made of all rows of a window when it fires: subclass it. It is one for all windows: what it remembers of
    a window is in `at.state`, which those of sessions do not have, and of a key in `at.key_state`."""

    @abstractmethod
    def process(
        self, key: tuple[Any, ...], window: WindowBounds, rows: pa.RecordBatch, at: WindowContext
    ) -> Iterable[Any] | None:
        """The rows that it gives, tuples or dicts of the columns that were declared, and `Side("late", row)` for side
        outputs. The window's rows come in the order of their arrival, at least one; where sessions become
        one, those of an epoch session by session."""

    def clear(self, key: tuple[Any, ...], window: WindowBounds, at: WindowContext) -> None:
        """The window closes: after this its state is gone."""
        del key, window, at


class Reducer(WindowProcessor):
    """One row, by a function of two, without the columns of the key."""

    def __init__(
        self, function: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]], key: tuple[str, ...]
    ) -> None:
        self._function, self._key = function, key

    def process(
        self, key: tuple[Any, ...], window: WindowBounds, rows: pa.RecordBatch, at: WindowContext
    ) -> Iterator[Any]:
        del key, window, at
        reduced = reduce(self._function, rows.to_pylist())
        yield {name: value for name, value in reduced.items() if name not in self._key}
