"""Aggregates of a key's rows: what each keeps of them, and what comes out. How states are merged is in accumulation.py.

An aggregate lifts each row to a state of one or two columns. States merge column by column, whatever rows they are of:
rows of a batch, batches of an epoch, or an epoch and all before it. A result is computed from a state.
"""

from __future__ import annotations

import enum
import re
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.decimals import DIGITS_MAX
from onefold.core.values.exact.late_numpy import np
from onefold.core.values.names import check_columns

_EXACT = Context(prec=2 * DIGITS_MAX, rounding=ROUND_HALF_UP)


class Merge(enum.Enum):
    """How one column of two states becomes that of both. Nulls count for FIRST and LAST alone."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"


Numbers: TypeAlias = "np.ndarray[Any, Any]"
Gather: TypeAlias = "Callable[[pa.Array, Numbers, int], pa.Array]"
"""Merges a column as no `Merge` does: of its values, the number of each one's group, and how many groups there are, it
makes one value of each group. Values of a group are in the order of their rows."""
Parts: TypeAlias = "tuple[tuple[str, Merge | Gather], ...]"


@dataclass(frozen=True)
class Aggregate(ABC):
    """An aggregate of a column, or of whole rows where `column` is None. Made by `sum_`, `count` and the others."""

    column: str | None
    parts: ClassVar[Parts]  # the state's columns, and how they merge

    def keeps(self) -> str:
        """What its state is of, in words that differ where it cannot be taken for that of another."""
        return str(self)

    def __str__(self) -> str:
        name = re.sub(r"(?<=.)([A-Z])", r"_\1", type(self).__name__.strip("_")).lower()
        return f"{name}({self.column or ''})"

    def lifts(self) -> Sequence[Merge | Gather]:
        """How what `lift` gives of rows becomes states: as a rule, as these merge."""
        return [merge for _, merge in self.parts]

    def depends_on_order(self, given: pa.DataType) -> bool:
        """Whether rows in another order may have another result."""
        pairs = zip(self.lifts(), self.kinds(given) or (), strict=False)
        return any(
            merge in (Merge.FIRST, Merge.LAST) or (merge is Merge.SUM and pa.types.is_floating(kind))
            for merge, kind in pairs
        )

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        """The types of the state's columns, of a column of that type; None where it cannot be computed of one."""
        return None if pa.types.is_string_view(given) or pa.types.is_binary_view(given) else (given,)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """What it is of, row by row: any column where it has none."""
        return batch.column(0 if self.column is None else self.column)

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:
        """Each row's own state, of its value."""
        return (values.cast(kinds[0]),)

    def result_kind(self, given: pa.DataType) -> pa.DataType:
        kinds = self.kinds(given)
        return pa.null() if kinds is None else kinds[0]

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:  # noqa: ARG002 - most are their state
        """The results, of that type, of states. Raises BadRecord where one does not fit."""
        return state[0]

    def given(self, schema: pa.Schema) -> pa.DataType:
        """The type of its column. Raises ConfigError where rows of that schema have none that it takes."""
        if self.column is None:
            return pa.null()
        check_columns([self.column], schema, str(self))
        given: pa.DataType = schema.field(self.column).type
        if self.kinds(given) is None:
            raise ConfigError("aggregate-type", f"{self} cannot be computed of {given}: cast the column first")
        return given


class _Sum(Aggregate):
    parts: ClassVar[Parts] = (("sum", Merge.SUM),)

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        if pa.types.is_decimal128(given):
            return (pa.decimal128(min(given.precision + 10, DIGITS_MAX), given.scale),)
        if pa.types.is_integer(given):
            return (given if pa.types.is_uint64(given) else pa.int64(),)
        return (pa.float64(),) if pa.types.is_floating(given) else None


class _Mean(_Sum):
    parts: ClassVar[Parts] = (
        ("sum", Merge.SUM),
        ("count", Merge.SUM),
    )

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        summed = super().kinds(given)
        return None if summed is None else (*summed, pa.int64())

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:
        return values.cast(kinds[0]), values.is_valid().cast(pa.int64())

    def result_kind(self, given: pa.DataType) -> pa.DataType:
        if pa.types.is_decimal128(given):
            return pa.decimal128(min(given.precision + 4, DIGITS_MAX), min(given.scale + 4, DIGITS_MAX))
        return pa.float64()

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        total, rows = state
        if not pa.types.is_decimal128(kind):
            return pc.divide(total.cast(kind, safe=False), rows.cast(kind))  # unsafe: rounds integers beyond 2**53
        place = Decimal(1).scaleb(-kind.scale)
        pairs = zip(total.to_pylist(), rows.to_pylist(), strict=True)
        means = [
            None if sum_ is None else _EXACT.divide(sum_, Decimal(n)).quantize(place, None, _EXACT) for sum_, n in pairs
        ]
        try:
            return pa.array(means, kind)
        except pa.ArrowInvalid as error:
            raise BadRecord("aggregate-overflow", f"{self} does not fit {kind}: {error}. Cast the column") from error


class _Count(Aggregate):
    parts: ClassVar[Parts] = (("count", Merge.SUM),)

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:  # noqa: ARG002 - of any column
        return (pa.int64(),)

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:
        one = pa.scalar(1, kinds[0])
        return (pa.repeat(one, len(values)) if self.column is None else values.is_valid().cast(kinds[0]),)


class _Min(Aggregate):
    parts: ClassVar[Parts] = (("min", Merge.MIN),)

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        types = pa.types
        unordered = (types.is_nested, types.is_dictionary, types.is_null, types.is_float16, types.is_interval)
        unmerged = (types.is_duration, types.is_decimal32, types.is_decimal64)
        return None if any(is_one(given) for is_one in (*unordered, *unmerged)) else super().kinds(given)


class _Max(_Min):
    parts: ClassVar[Parts] = (("max", Merge.MAX),)


class First(Aggregate):
    parts: ClassVar[Parts] = (("first", Merge.FIRST),)


class Last(Aggregate):
    parts: ClassVar[Parts] = (("last", Merge.LAST),)


def sum_(column: str) -> Aggregate:
    """The sum of the values that are not null; null where all are.

    Of integers int64 (of uint64 uint64), of decimal(p,s) decimal(p+10,s) with 38 digits at most, of floats double. A
    sum beyond its type, also of a part of the rows, is an error (`aggregate-overflow`), and never wraps around: cast
    the column to a wider decimal. A sum of floats depends on the order of the rows in its last digits, so that two runs
    may differ there.
    """
    return _Sum(column)


def count(column: str | None = None) -> Aggregate:
    """The number of rows; of a column, of its values that are not null. int64."""
    return _Count(column)


def min_(column: str) -> Aggregate:
    """The smallest of the values that are not null; null where all are. NaN is above all other numbers."""
    return _Min(column)


def max_(column: str) -> Aggregate:
    """The largest of the values that are not null; null where all are. NaN is above all other numbers."""
    return _Max(column)


def mean(column: str) -> Aggregate:
    """The mean of the values that are not null; null where all are.

    Of decimal(p,s) decimal(p+4,s+4) with 38 digits at most, rounded half up; of other numbers double: the sum, with the
    bounds of `sum_`, divided by the count.
    """
    return _Mean(column)


def aggregated_schema(schema: pa.Schema, key: tuple[str, ...], aggregates: Mapping[str, Aggregate]) -> pa.Schema:
    """The columns of the key, and the results. Raises ConfigError for what cannot be computed."""
    if not aggregates:
        raise ConfigError("option-missing", "aggregate names no aggregate: aggregate(uid=..., total=sum_('amount'))")
    results = []
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise ConfigError(
                "option-value", f"aggregate: {name}={aggregate!r:.100} is none. Use sum_('amount'), count(), ..."
            )
        if name in key:
            raise ConfigError("column-name-taken", f"aggregate: {name!r} is a column of the key. Name it otherwise")
        results.append(pa.field(name, aggregate.result_kind(aggregate.given(schema))))
    return pa.schema([*(schema.field(name) for name in key), *results])
