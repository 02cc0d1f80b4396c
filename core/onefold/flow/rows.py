"""Rows for users' functions, and batches of the rows that these give."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.names import near

__all__ = [
    "BATCH_ROWS_MAX",
    "Output",
    "RowCollector",
    "Side",
    "dicts_of",
    "row_type",
    "rows_of",
    "undeclared",
    "values_of",
]

BATCH_ROWS_MAX = 32_768  # of rows that functions gave one by one

Output = tuple[str | None, pa.RecordBatch]  # the output's name, None for the main one


@dataclass(frozen=True, slots=True)
class Side:
    """What a function yields in the place of a row (or batch), to emit it to one of its side outputs:
    `yield Side("late", row)`. The side is declared where the function is: `flat_map(function, sides={"late": ...})`.
    """

    name: str
    value: Any


def values_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of plain Python values."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def dicts_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts of plain Python values."""
    names = batch.schema.names
    return (dict(zip(names, values, strict=True)) for values in values_of(batch))


def row_type(names: Sequence[str]) -> type[Any]:
    """A class of tuples whose columns are attributes, and found by index and by name, as in Spark's rows."""
    places = {name: place for place, name in enumerate(names)}
    base: Any = namedtuple("Row", list(names), rename=True)  # type: ignore[misc]

    class Row(base):
        __slots__ = ()

        def __getitem__(self, at: Any) -> Any:
            return tuple.__getitem__(self, places[at] if type(at) is str else at)

        def __reduce__(self) -> Any:
            return _row, (tuple(names), tuple(self))

        def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return dict(zip(names, self, strict=True))

    return Row


def rows_of(batch: pa.RecordBatch, kind: type[Any]) -> Iterator[Any]:
    """The rows as those of a `row_type` of the batch's columns."""
    return map(kind._make, values_of(batch))


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_type(names)._make(values)


class RowCollector:
    """Makes batches of a node's outputs from the rows that a user's function or processor gives.

    A row is a tuple (or a list) of all columns, or a dict, in which a column may be missing and is null then. `name` is
    the node's, for errors; `outputs` has the schemas of its outputs.
    """

    def __init__(self, name: str, outputs: Mapping[str | None, pa.Schema]) -> None:
        self._name = name
        self._schemas = dict(outputs)
        self._rows: dict[str | None, list[Any]] = {output: [] for output in outputs}
        self._names = {output: tuple(schema.names) for output, schema in outputs.items()}
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count >= BATCH_ROWS_MAX

    def add(self, row: Any) -> None:
        """Raises ConfigError for a row of other columns, and for a side that was not declared."""
        output = None
        if type(row) is Side:
            output, row = row.name, row.value
            if output not in self._rows:
                raise undeclared(self._name, output, [name for name in self._rows if name is not None])
        names = self._names[output]
        if isinstance(row, Mapping):
            if unknown := [name for name in row if name not in names]:
                told = near(unknown[0], names) or f"; the columns are {', '.join(names)}"
                raise ConfigError("function-row", f"{self._name} gives a row with a column {unknown[0]!r}{told}")
            row = tuple(map(row.get, names))
        elif not isinstance(row, tuple | list) or len(row) != len(names):
            raise ConfigError(
                "function-row",
                f"{self._name} gives {row!r:.200}, which is no row of the columns {', '.join(names)}. Let it give"
                " tuples or dicts of them",
            )
        self._rows[output].append(row)
        self._count += 1

    def take(self) -> Iterator[Output]:
        """The rows since the last call. Raises BadRecord where a value is not of its column's type."""
        taken, self._rows = self._rows, {output: [] for output in self._schemas}
        self._count = 0
        for output, rows in taken.items():
            if rows:
                yield output, self._batch(rows, self._schemas[output])

    def _batch(self, rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._array(values, field) for values, field in zip(zip(*rows, strict=True), schema, strict=True)],
            schema=schema,
        )

    def _array(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadRecord(
                "function-value",
                f"{self._name} gives a value for the column {field.name!r} that is no {field.type}: {error}. Convert"
                " it there, or name another type in schema=",
            ) from error


def undeclared(name: str, side: str, sides: Sequence[str]) -> ConfigError:
    """The error for rows to a side output that there is not."""
    told = near(side, sides) or f". Name it where the function is: sides={{{side!r}: schema}}"
    return ConfigError("side-not-declared", f"{name} emits to the side output {side!r}, which was not declared{told}")
