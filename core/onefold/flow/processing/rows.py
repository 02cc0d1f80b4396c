"""Rows for users' functions, and batches of the rows that these give."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from sys import intern
from typing import Any

import pyarrow as pa

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.exact import Mismatch, copies, exact_array, is_mutable
from onefold.core.values.exact.python_values import python_values
from onefold.core.values.names import near
from onefold.core.values.plain import plain

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


def columns_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """The columns' plain Python values. Raises BadRecord for one that Python has no value for."""
    return [_values(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]


def values_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of plain Python values. Raises as `columns_of` does."""
    return zip(*columns_of(batch), strict=True)


def _values(column: pa.Array, field: pa.Field) -> list[Any]:
    try:
        return python_values(column)
    except (ValueError, OverflowError, pa.ArrowException) as error:  # a year beyond 9999, nanoseconds, no UTF-8
        raise BadRecord(
            "function-value",
            f"the column {field.name!r} of type {field.type} has a value that Python has none for: {error}. Leave the"
            " column out before a function gets its rows, or cast it",
        ) from error


def dicts_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts of plain Python values."""
    return map(dict_maker(tuple(batch.schema.names)), values_of(batch))


def row_type(names: Sequence[str]) -> type[Any]:
    """A class of tuples whose columns are attributes, and found by index and by name, as in Spark's rows. It is called
    with a tuple: the constructor that `namedtuple` writes in Python takes twice as long."""
    named: Any = namedtuple("Row", list(names), rename=True)  # type: ignore[misc]
    fields: tuple[str, ...] = named._fields
    members: dict[str, Any] = {name: member for name, member in vars(named).items() if name != "__new__"}
    aliases = {name: intern(f" {name}") for name in names}  # none of them is the name of another member
    members |= {aliases[name]: members[field] for name, field in zip(names, fields, strict=True)}
    at_place = tuple.__getitem__

    def found(self: Any, at: Any) -> Any:
        return getattr(self, aliases[at]) if type(at) is str else at_place(self, at)

    def reduced(self: Any) -> Any:
        return _row, (tuple(names), tuple(self))

    def as_dict(self: Any) -> dict[str, Any]:
        return dict(zip(names, self, strict=True))

    return type("Row", (tuple,), {**members, "__getitem__": found, "__reduce__": reduced, "asDict": as_dict})


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_type(names)(values)


@cache
def dict_maker(names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], dict[str, Any]]:
    """A function that makes a dict of a tuple of so many values; made of its text, since `dict(zip(...))` takes three
    times as long."""
    maker: Any = eval(f"lambda values: {{{', '.join(f'{name!r}: values[{at}]' for at, name in enumerate(names))}}}")
    return maker  # type: ignore[no-any-return]


class RowCollector:
    """Makes batches of a node's outputs from the rows that a user's function or processor gives.

    A row is a tuple (or a list) of all columns, or a dict, in which a column may be missing and is null then. It is
    held by value: what becomes of it after it was given changes nothing. `name` is the node's, for errors; `outputs`
    has the schemas of its outputs.
    """

    def __init__(self, name: str, outputs: Mapping[str | None, pa.Schema]) -> None:
        self._name = name
        self._outputs = {output: _Collected(name, schema) for output, schema in outputs.items()}
        self._main = self._outputs[None]
        self._begin()

    def add(self, row: Any) -> None:
        """As `fill` with one row."""
        self.fill(iter((row,)))

    def fill(self, given: Iterator[Any]) -> bool:
        """Add rows until there are BATCH_ROWS_MAX, and say whether there are: else `given` has no more. Raises
        ConfigError for a row of other columns, and for a side that was not declared, BadRecord where a value that can
        change is not of its column's type."""
        main = self._main
        values, width, of_dict = main.values, main.plain_width, main.of_dict
        for row in given:
            of = type(row)
            if of is tuple and len(row) == width:
                values += row
            elif of is dict and len(row) == width:
                try:
                    values += of_dict(row)
                except KeyError:
                    main.add(row)
            elif of is Side:
                self._put_aside(row)
            else:
                main.add(row)
            if len(values) >= self._values_max:
                return True
        return False

    def take(self) -> Iterator[Output]:
        """The rows since the last call. Raises BadRecord where a value is not of its column's type."""
        taken = [(output, of, of.take()) for output, of in self._outputs.items()]
        self._begin()
        for output, of, values in taken:
            if values:
                yield output, of.batch(values)

    def _begin(self) -> None:
        self._values_max = BATCH_ROWS_MAX * self._main.width  # of the main output, less those of as many further rows

    def _put_aside(self, given: Side) -> None:
        if given.name not in self._outputs:
            raise undeclared(self._name, given.name, [name for name in self._outputs if name is not None])
        of = self._outputs[given.name]
        of.add(given.value)
        if of is not self._main:
            self._values_max -= self._main.width


class _Collected:
    """The values of one output's rows, row by row: a list of all, which has nothing for the garbage collector to look
    through. `plain_width` is that of tuples and dicts with values that cannot change; none has it where some can."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self._name, self._schema, self._names, self.width = name, schema, tuple(schema.names), len(schema)
        self._mutable = [(place, copies(field.type)) for place, field in enumerate(schema) if is_mutable(field.type)]
        self.plain_width = -1 if self._mutable else self.width
        self.of_dict = itemgetter(*self._names) if self.width > 1 else self._tuple  # that has all columns
        self.values: list[Any] = []

    def add(self, row: Any) -> None:
        given = row if type(row) is tuple and len(row) == self.width else self._tuple(row)
        self.values += self._owned(given) if self._mutable else given

    def take(self) -> list[Any]:
        taken, self.values = self.values, []
        return taken

    def batch(self, taken: list[Any]) -> pa.RecordBatch:
        arrays = []
        for place, field in enumerate(self._schema):
            values = taken[place :: self.width]
            try:
                array = exact_array(values, field.type)
                if not field.nullable and array.null_count:
                    raise Mismatch(
                        "null", "the column is NOT NULL", row=next(at for at, each in enumerate(values) if each is None)
                    )
            except Mismatch as error:
                at = None if error.row is None else error.row * self.width
                row = () if at is None else tuple(taken[at : at + self.width])
                raise not_of_type(f"{self._name} gives", error, field, row) from None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _tuple(self, row: Any) -> tuple[Any, ...]:
        names = self._names
        if isinstance(row, tuple | list):
            if len(row) == self.width:
                return tuple(row)
        elif isinstance(row, Mapping):
            if unknown := [name for name in row if name not in names]:
                told = near(str(unknown[0]), names) or f"; the columns are {', '.join(names)}"
                raise ConfigError("function-row", f"{self._name} gives a row with a column {unknown[0]!r}{told}")
            return tuple(map(row.get, names))
        raise ConfigError(
            "function-row",
            f"{self._name} gives {row!r:.200}, which is no row of the columns {', '.join(names)}. Let it give"
            " tuples or dicts of them",
        )

    def _owned(self, given: Sequence[Any]) -> list[Any]:
        row = list(given)
        for place, copied in self._mutable:
            try:
                row[place] = copied(row[place])
            except Mismatch as error:
                field = self._schema.field(place)
                raise not_of_type(f"{self._name} gives", error, field, given) from None
        return row


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
