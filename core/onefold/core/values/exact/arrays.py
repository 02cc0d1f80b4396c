"""Python values as Arrow arrays."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa

from onefold.core.values.exact.canonical import canonical
from onefold.core.values.exact.casting import exact_cast
from onefold.core.values.exact.kinds import Family, Mismatch, family, is_encoded

Test: TypeAlias = Callable[[set[type], Sequence[Any], pa.DataType], bool]

_NONE = type(None)
_SINGLE_MAX = 3.4028234663852886e38
_zone_of = attrgetter("tzinfo")


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as an array of the type. Raises `Mismatch` for the first that the type does not take."""
    if _is_plain(values, kind):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # the value to blame is found below
    convert = canonical(kind)
    found = []
    for row, value in enumerate(values):
        try:
            found.append(convert(value))
        except Mismatch as error:
            raise error.below("", row) from None
    try:
        if is_encoded(kind):
            return exact_cast(pa.array(found, kind.value_type), kind)
        return pa.array(found, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Mismatch(f"{len(found)} values", f"pyarrow does not make {kind} of them: {error}") from error


def _is_plain(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether pyarrow's own conversion of them is exact, or raises."""
    test = _TESTS.get(family(kind))
    if test is None or is_encoded(kind):
        return False
    classes = set(map(type, values))
    if _NONE in classes:
        classes.discard(_NONE)
        values = [value for value in values if value is not None]
    return test(classes, values, kind)


def _of(*allowed: type) -> Test:
    def test(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
        del values, kind
        return classes.issubset(allowed)

    return test


def _are_floats(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
    if kind.bit_width == 64:
        return classes.issubset((float, int))
    return classes.issubset((float,)) and kind.bit_width == 32 and max(map(abs, values), default=0.0) <= _SINGLE_MAX


def _are_decimals(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
    """Of the type's scale: pyarrow ends the process at an exponent below its table."""
    return classes.issubset((Decimal,)) and all(map(Decimal((0, (1,), -kind.scale)).same_quantum, values))


def _are_naive(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
    return classes.issubset((dt.datetime,)) and kind.unit == "us" and set(map(_zone_of, values)) <= {None}


def _are_utc(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
    """In UTC, since pyarrow cuts offsets to seconds, and leaves the years that Python has."""
    if not classes.issubset((dt.datetime,)) or kind.unit != "us":
        return False
    return all(zone is dt.UTC or getattr(zone, "key", None) == "UTC" for zone in set(map(_zone_of, values)))


def _are_lists(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
    return classes.issubset((list, tuple)) and _are_parts([*chain.from_iterable(values)], kind.value_field)


def _are_structs(classes: set[type], values: Sequence[Any], kind: pa.DataType) -> bool:
    fields = [kind[at] for at in range(kind.num_fields)]
    if not classes.issubset((dict,)) or not {field.name for field in fields}.issuperset(chain.from_iterable(values)):
        return False
    return all(_are_parts([value.get(field.name) for value in values], field) for field in fields)


def _are_parts(values: Sequence[Any], field: pa.Field) -> bool:
    return (field.nullable or _NONE not in set(map(type, values))) and _is_plain(values, field.type)


_TESTS: dict[Family, Test] = {
    Family.BOOLEAN: _of(bool),
    Family.INTEGER: _of(int),
    Family.FLOAT: _are_floats,
    Family.DECIMAL: _are_decimals,
    Family.TEXT: _of(str),
    Family.BINARY: _of(bytes),
    Family.DATE: _of(dt.date),
    Family.ZONED: _are_utc,
    Family.NAIVE: _are_naive,
    Family.LIST: _are_lists,
    Family.STRUCT: _are_structs,
}
