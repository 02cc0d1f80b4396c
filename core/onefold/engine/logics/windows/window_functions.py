"""What is made of all rows of windows that fire: aggregates, or what a processor gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from onefold.core.aggregates import Accumulation
from onefold.core.errors import ConfigError
from onefold.core.values.exact import exact_array
from onefold.engine.logics.logic import Output
from onefold.engine.logics.windows.contents import OpenWindow, Row
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Windowing
from onefold.flow.processing.rows import RowCollector, note, values_of
from onefold.flow.time.triggers import WindowState
from onefold.flow.time.window_processor import WindowProcessor
from onefold.flow.time.windows import Sessions

_FIRING = pa.field("$firing", pa.int64())  # a name that no user's column has


class Fired(NamedTuple):
    """A window that has fired with these rows, at least one; how often by then, and when."""

    window: OpenWindow
    rows: list[Row]
    emission: int
    when: str


class WindowFunction:
    """Of one operator. `sides` has what was given to side outputs, until somebody takes it."""

    def __init__(self, node: Node, operator: Windowing, processor: WindowProcessor | None, given: pa.Schema) -> None:
        self._processor, self._given, schema = processor, given, node.outputs()[None]
        self._seen: Callable[[OpenWindow], Any] = lambda window: window
        if isinstance(operator.windows, Sessions):
            self._seen = _Session
        first = len(operator.key) + len(operator.columns)
        results = [*schema][first : len(schema) - operator.fires_again - operator.takes_back]
        self._rows = RowCollector(node.name, {**node.outputs(), None: pa.schema(results)})
        self._accumulation = Accumulation(given.append(_FIRING), (_FIRING.name,), operator.aggregates)
        self.sides: list[Output] = []

    def results(self, fired: Sequence[Fired]) -> list[list[Row]]:
        """The rows of each, without the columns of its key and window."""
        if self._processor is not None:
            return [self._processed(each, self._processor) for each in fired]
        batch = batch_of(self._given, (row for each in fired for row in each.rows))
        places = np.repeat(np.arange(len(fired)), [len(each.rows) for each in fired])
        states = self._accumulation.states(batch.append_column(_FIRING, pa.array(places)))
        return [[row[1:]] for row in values_of(self._accumulation.results(states).sort_by(_FIRING.name))]

    def clear(self, window: OpenWindow) -> None:
        """The window closes."""
        if self._processor is not None:
            self._processor.clear(window.key, window.window, self._seen(window))

    def _processed(self, fired: Fired, processor: WindowProcessor) -> list[Row]:
        window, found, is_more = fired.window, list[Row](), True
        try:
            made = processor.process(window.key, window.window, batch_of(self._given, fired.rows), self._seen(window))
            rows = iter(made or ())
            while is_more:
                is_more = self._rows.fill(rows)
                for output, batch in self._rows.take():
                    if output is None:
                        found += values_of(batch)
                    else:
                        self.sides.append((output, batch))
        except Exception as error:
            note(error, "key", window.key)
            raise
        return found


class _Session:
    """Implements WindowContext but for `state`: what functions remember of sessions, nobody could merge."""

    def __init__(self, window: OpenWindow) -> None:
        self._window = window

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)

    @property
    def state(self) -> WindowState:
        raise ConfigError(
            "window-state-sessions",
            "a function of sessions asks for at.state, and sessions may become one, of which nobody could say what it"
            " remembers: use at.key_state, or windows of another kind",
        )


def batch_of(schema: pa.Schema, rows: Iterable[Row]) -> pa.RecordBatch:
    columns = zip(schema, [*zip(*rows, strict=True)], strict=False)  # but the time
    return pa.RecordBatch.from_arrays([exact_array([*values], field.type) for field, values in columns], schema=schema)
