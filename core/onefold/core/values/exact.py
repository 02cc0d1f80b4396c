"""The one conversion of values to types: exact, or an error that names the value.

Every value that leaves Python or Arrow for a type goes through here: `exact_array` takes Python values, `exact_cast`
Arrow's, and `canonical` single ones. All three follow one table:

=====================  ===================================================================================
a type                 takes
=====================  ===================================================================================
boolean                true and false; no numbers
integers               integers of its range; decimals that are such integers; no floats (1.0 neither)
float, double          floats; integers up to 2^24 and 2^53; no decimals. A `float` takes a double only where
                       it is one of its own, but a Python float, which has no narrower type, by rounding
decimal                decimals and integers of its precision that lose nothing at its scale; no floats
string                 texts; bytes that are UTF-8
binary                 bytes, of its length if it has one; texts, as UTF-8
date                   dates; no timestamps, also none at midnight
timestamp              timestamps with a zone: the same instant; none without a zone
timestamp_ntz          timestamps without a zone; none with one
time, duration         times of day without a zone; durations
array                  lists, tuples and arrays, of its length if it has one; no sets
struct                 structs and dicts without fields that it lacks; fields that may be null may be missing;
                       plain tuples of as many values
map                    maps, dicts and lists of pairs, whose keys are not null, and there once
=====================  ===================================================================================

Times lose nothing to a coarser unit and lie in the range of a finer one. Null is a value of every type, but not below
a NOT NULL. How values are encoded (dictionaries, run ends, views, large offsets) does not matter. Numbers are not read
out of texts here: that is decimals.py's and the formats'.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa

from onefold.core.values.canonical import canonical
from onefold.core.values.casting import exact_cast
from onefold.core.values.kinds import Family, Mismatch, family

__all__ = ["Mismatch", "canonical", "exact_array", "exact_cast"]

Test: TypeAlias = Callable[[set[type], Sequence[Any], pa.DataType], bool]

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
    return _array(found, kind)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Of values in their canonical form."""
    try:
        if pa.types.is_dictionary(kind):
            return exact_cast(pa.array(values, kind.value_type), kind)
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Mismatch(f"{len(values)} values", f"pyarrow does not make {kind} of them: {error}") from error


def _is_plain(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether pyarrow's own conversion of them is exact, or raises."""
    test = _TESTS.get(family(kind))
    if test is None or pa.types.is_dictionary(kind):
        return False
    classes = set(map(type, values))
    if type(None) in classes:
        classes.discard(type(None))
        return test(classes, [value for value in values if value is not None], kind)
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
}
