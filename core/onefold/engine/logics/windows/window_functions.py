"""What is made of all rows of windows that fire: aggregates, one row by a function, or what a processor gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from onefold.core.aggregates import Accumulation
from onefold.core.errors import ConfigError
from onefold.core.values.exact import exact_array
from onefold.engine.logics.logic import Output
from onefold.engine.logics.windows.contents import Contents, OpenWindow, Row
from onefold.flow.graph import Elements, Node, Windowing
from onefold.flow.processing.rows import RowCollector, dict_maker, note, values_of
from onefold.flow.time.window_processor import WindowProcessor

__all__ = ["Fired", "WindowFunction", "batch_of", "window_function"]

_FIRING = pa.field("$firing", pa.int64())  # a name that no user's column has


class Fired(NamedTuple):
    """A window that has fired with these rows, at least one; how often by then, and when."""

    window: OpenWindow
    rows: list[Row]
    emission: int
    when: str


class WindowFunction(Protocol):
    def results(self, fired: Sequence[Fired]) -> list[list[Row]]:
        """The rows of each, without the columns of its key and window."""
        ...

    def sides(self) -> Iterable[Output]:
        """What was given to side outputs since the last call."""
        ...

    def clear(self, window: OpenWindow) -> None:
        """The window closes."""
        ...


def window_function(node: Node, operator: Windowing, given: pa.Schema, contents: Contents) -> WindowFunction:
    elements, schema = operator.elements or Elements(), node.outputs()[None]
    if elements.processor is not None:
        first = len(operator.key) + len(operator.columns)
        results = pa.schema([*schema][first : len(schema) - operator.fires_again - operator.takes_back])
        return _Processed(node, elements.processor, given, results, contents)
    if elements.reduce is not None:
        return _Reduced(node.name, elements.reduce, given, operator.key)
    return _Aggregated(operator, given)


def batch_of(schema: pa.Schema, rows: Iterable[Row]) -> pa.RecordBatch:
    columns = zip(schema, [*zip(*rows, strict=True)], strict=False)  # but the time
    return pa.RecordBatch.from_arrays([exact_array([*values], field.type) for field, values in columns], schema=schema)


class _Plain:
    """One without side outputs, and without state."""

    def sides(self) -> Iterable[Output]:
        return ()

    def clear(self, window: OpenWindow) -> None:
        del window


class _Aggregated(_Plain):
    def __init__(self, operator: Windowing, given: pa.Schema) -> None:
        self._given = given
        self._accumulation = Accumulation(given.append(_FIRING), (_FIRING.name,), operator.aggregates)

    def results(self, fired: Sequence[Fired]) -> list[list[Row]]:
        batch = batch_of(self._given, (row for each in fired for row in each.rows))
        places = np.repeat(np.arange(len(fired)), [len(each.rows) for each in fired])
        states = self._accumulation.states(batch.append_column(_FIRING, pa.array(places)))
        found = self._accumulation.results(states).sort_by(_FIRING.name)
        return [[row[1:]] for row in values_of(found)]


class _Reduced(_Plain):
    def __init__(self, name: str, function: Callable[..., Any], given: pa.Schema, key: tuple[str, ...]) -> None:
        self._name, self._function, self._names = name, function, tuple(given.names)
        self._given_names = [name for name in given.names if name not in key]

    def results(self, fired: Sequence[Fired]) -> list[list[Row]]:
        return [[self._reduced(each)] for each in fired]

    def _reduced(self, fired: Fired) -> Row:
        made = dict_maker(self._names)
        kept = made(fired.rows[0])
        for row in fired.rows[1:]:
            try:
                kept = self._function(kept, made(row))
            except Exception as error:
                note(error, "key", fired.window.key)
                raise
            if not isinstance(kept, dict) or not kept.keys() <= {*self._names}:
                raise ConfigError(
                    "function-row",
                    f"{self._name}: of two rows of the key {fired.window.key!r} the function gives {kept!r:.200}. Let"
                    f" it give a dict of the columns {', '.join(self._names)}",
                )
        return tuple(map(kept.get, self._given_names))


class _Context:
    """Implements WindowContext."""

    def __init__(self, window: OpenWindow, contents: Contents, keeps_state: bool) -> None:
        self.watermark_us, self.now_ms = window.watermark_us, window.now_ms
        self._window, self._contents, self._keeps_state = window, contents, keeps_state

    @property
    def state(self) -> dict[str, Any]:
        if not self._keeps_state:
            raise ConfigError("window-state", "a WindowProcessor that uses at.state says keeps_state = True")
        return self._window.own

    @property
    def key_state(self) -> dict[str, Any]:
        return self._contents.key_state(self._window.key)


class _Processed:
    def __init__(
        self, node: Node, processor: WindowProcessor, given: pa.Schema, results: pa.Schema, contents: Contents
    ) -> None:
        self._processor, self._given, self._contents = processor, given, contents
        self._rows = RowCollector(node.name, {**node.outputs(), None: results})
        self._sides: list[Output] = []

    def results(self, fired: Sequence[Fired]) -> list[list[Row]]:
        return [self._processed(each) for each in fired]

    def sides(self) -> Iterable[Output]:
        sides, self._sides = self._sides, []
        return sides

    def clear(self, window: OpenWindow) -> None:
        self._processor.clear(window.key, window.window, self._context(window))

    def _processed(self, fired: Fired) -> list[Row]:
        window, rows, found = fired.window, batch_of(self._given, fired.rows), list[Row]()
        try:
            given = self._processor.process(window.key, window.window, rows, self._context(window))
            is_more, left = True, iter(given or ())
            while is_more:
                is_more = self._rows.fill(left)
                for output, batch in self._rows.take():
                    if output is None:
                        found += values_of(batch)
                    else:
                        self._sides.append((output, batch))
        except Exception as error:
            note(error, "key", window.key)
            raise
        return found

    def _context(self, window: OpenWindow) -> _Context:
        return _Context(window, self._contents, self._processor.keeps_state)
