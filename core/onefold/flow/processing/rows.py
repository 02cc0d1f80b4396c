"""Rows for users' functions, and batches of the rows that these give."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.exact import Mismatch, copies, exact_array, is_mutable
from onefold.core.values.names import near
from onefold.core.values.plain import plain

__all__ = [
    "BATCH_ROWS_MAX",
    "OF",
    "Output",
    "RowCollector",
    "Side",
    "dicts_of",
    "not_of_type",
    "note",
    "row_type",
    "rows_of",
    "undeclared",
    "values_of",
]

BATCH_ROWS_MAX = 32_768  # of rows that functions gave one by one
OF = "of the"  # how a note begins that says for what a function has raised

Output = tuple[str | None, pa.RecordBatch]  # the output's name, None for the main one


@dataclass(frozen=True, slots=True)
class Side:
    """What a function yields in the place of a row (or batch), to emit it to one of its side outputs:
    `yield Side("late", row)`. The side is declared where the function is: `flat_map(function, sides={"late": ...})`.
    """

    name: str
    value: Any


def note(error: BaseException, what: str, value: Any) -> None:
    """Have an error that a function has raised say of what: of which key, or row."""
    error.add_note(f"{OF} {what} {plain(repr(value), 200)}")


def values_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of plain Python values. Raises BadRecord for one that Python has no value for."""
    return zip(*map(_values, batch.columns, batch.schema), strict=True)


def _values(column: pa.Array, field: pa.Field) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException) as error:  # a year beyond 9999, nanoseconds, no UTF-8
        raise BadRecord(
            "function-value",
            f"the column {field.name!r} of type {field.type} has a value that Python has none for: {error}. Leave the"
            " column out before a function gets its rows, or cast it",
        ) from error
    return found


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

        def asDict(self) -> dict[str, Any]:
            return dict(zip(names, self, strict=True))

    return Row


def rows_of(batch: pa.RecordBatch, kind: type[Any]) -> Iterator[Any]:
    """The rows as those of a `row_type` of the batch's columns."""
    return map(kind._make, values_of(batch))


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_type(names)._make(values)


class RowCollector:
    """Makes batches of a node's outputs from the rows that a user's function or processor gives.

    A row is a tuple (or a list) of all columns, or a dict, in which a column may be missing and is null then. It is
    held by value: what becomes of it after `add` changes nothing. `name` is the node's, for errors; `outputs` has the
    schemas of its outputs.
    """

    def __init__(self, name: str, outputs: Mapping[str | None, pa.Schema]) -> None:
        self._name = name
        self._schemas = dict(outputs)
        self._rows: dict[str | None, list[Sequence[Any]]] = {output: [] for output in outputs}
        self._names = {output: tuple(schema.names) for output, schema in outputs.items()}
        self._mutable = {
            output: [(place, copies(field.type)) for place, field in enumerate(schema) if is_mutable(field.type)]
            for output, schema in outputs.items()
        }
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count >= BATCH_ROWS_MAX

    def add(self, row: Any) -> None:
        """Raises ConfigError for a row of other columns, and for a side that was not declared, BadRecord where a value
        that can change is not of its column's type."""
        output = None
        if type(row) is Side:
            output, row = row.name, row.value
            if output not in self._rows:
                raise undeclared(self._name, output, [name for name in self._rows if name is not None])
        if type(row) is not tuple or len(row) != len(self._names[output]):
            row = self._tuple(row, self._names[output])
        if self._mutable[output]:
            given, row = row, list(row)
            for place, copied in self._mutable[output]:
                try:
                    row[place] = copied(row[place])
                except Mismatch as error:
                    raise not_of_type(f"{self._name} gives", error, self._schemas[output].field(place), given) from None
        self._rows[output].append(row)
        self._count += 1

    def take(self) -> Iterator[Output]:
        """The rows since the last call. Raises BadRecord where a value is not of its column's type."""
        taken, self._rows = self._rows, {output: [] for output in self._schemas}
        self._count = 0
        for output, rows in taken.items():
            if rows:
                yield output, self._batch(rows, self._schemas[output])

    def _tuple(self, row: Any, names: Sequence[str]) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            if unknown := [name for name in row if name not in names]:
                told = near(str(unknown[0]), names) or f"; the columns are {', '.join(names)}"
                raise ConfigError("function-row", f"{self._name} gives a row with a column {unknown[0]!r}{told}")
            return tuple(map(row.get, names))
        if not isinstance(row, tuple | list) or len(row) != len(names):
            raise ConfigError(
                "function-row",
                f"{self._name} gives {row!r:.200}, which is no row of the columns {', '.join(names)}. Let it give"
                " tuples or dicts of them",
            )
        return tuple(row)

    def _batch(self, rows: list[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
        arrays = []
        for values, field in zip(zip(*rows, strict=True), schema, strict=True):
            try:
                array = exact_array(values, field.type)
                if not field.nullable and array.null_count:
                    raise Mismatch(
                        "null", "the column is NOT NULL", row=next(at for at, each in enumerate(values) if each is None)
                    )
            except Mismatch as error:
                row = () if error.row is None else tuple(rows[error.row])
                raise not_of_type(f"{self._name} gives", error, field, row) from None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def not_of_type(who: str, error: Mismatch, field: pa.Field, row: Any) -> BadRecord:
    """The error for a value of a function that its column does not take. `who` says that it gives: `split gives`."""
    return BadRecord(
        "function-value",
        f"{who} {error.value} in the column {field.name + error.path!r} of the row {row!r:.200}, and"
        f" {error.reason}. Convert it there, or name another type in schema=",
    )


def undeclared(name: str, side: str, sides: Sequence[str]) -> ConfigError:
    """The error for rows to a side output that there is not."""
    told = near(side, sides) or f". Name it where the function is: sides={{{side!r}: schema}}"
    return ConfigError("side-not-declared", f"{name} emits to the side output {side!r}, which was not declared{told}")
