"""States that are lists: of the sub-keys of a key, each of them once, with a number beside it or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates.accumulation import merged
from onefold.core.aggregates.functions import Aggregate, Merge, Numbers, Parts
from onefold.core.values.exact import Family, family
from onefold.core.values.exact.late_numpy import np

_ENCODED = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_string_view,
    pa.types.is_binary_view,
)
_WHOLE = (Family.BOOLEAN, Family.DATE, Family.DURATION, Family.FLOAT, Family.NAIVE, Family.TIME, Family.ZONED)


@dataclass(frozen=True)
class SubKeys:
    """A Gather of lists of sub-keys: each stays once. In a struct with a number, that merges as `number` says."""

    number: Merge | None = None

    def __call__(self, lists: pa.LargeListArray, groups: Numbers, count: int) -> pa.LargeListArray:
        elements, groups = elements_of(lists, groups)
        kind, merges = elements.type, [self.number] if self.number else []
        columns = elements.flatten() if merges else [elements]
        names = ["group", "sub-key", "number"][: 1 + len(columns)]
        found = merged(pa.RecordBatch.from_arrays([pa.array(groups), *columns], names), merges)
        numbers, *columns = found.columns
        elements = pa.StructArray.from_arrays(columns, fields=[*kind]) if merges else columns[0]
        return lists_of(elements, numbers.to_numpy(), count)


def lists_of(elements: pa.Array, groups: Numbers, count: int) -> pa.LargeListArray:
    """A list of the elements of each of so many groups, in their order."""
    if (np.diff(groups) < 0).any():
        order = np.argsort(groups, kind="stable")
        elements = elements.take(pa.array(order))
    ends = np.cumsum(np.bincount(groups, minlength=count))
    return pa.LargeListArray.from_arrays(pa.array(np.concatenate(([0], ends))), elements)


def elements_of(lists: pa.LargeListArray, groups: Numbers) -> tuple[pa.Array, Numbers]:
    """All elements, and the group of each: that of its list."""
    return lists.flatten(), np.repeat(groups, np.diff(lists.offsets.to_numpy()))


def singles(elements: pa.Array, is_there: pa.BooleanArray) -> pa.LargeListArray:
    """A list of each element alone, and an empty one where it is not there."""
    ends = np.cumsum(is_there.to_numpy(zero_copy_only=False), dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(np.concatenate(([0], ends))), elements.filter(is_there))


def order_kind(kind: pa.DataType) -> pa.DataType | None:
    """The type of what `in_order` gives of values of that type; None where they have no order."""
    if any(is_one(kind) for is_one in _ENCODED):
        return None
    match family(kind):
        case Family.INTEGER:
            return kind if pa.types.is_uint64(kind) else pa.int64()
        case Family.TEXT:
            return pa.large_string()
        case Family.BINARY:
            return pa.large_binary()
        case Family.DECIMAL:
            return kind if kind.bit_width >= 128 else pa.decimal128(kind.precision, kind.scale)
        case found:
            return pa.int64() if found in _WHOLE else None


def in_order(values: pa.Array) -> pa.Array:
    """Values of a type that Arrow sorts and groups by, which are equal and less where the given ones are. Of floats
    -0.0 is below 0.0, and NaN is above all others."""
    kind = values.type
    if pa.types.is_floating(kind):
        floats = values.cast(pa.float64())
        bits = pc.if_else(pc.is_nan(floats), float("nan"), floats).view(pa.int64())
        return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, 2**63 - 1), bits)
    if pa.types.is_temporal(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return values.cast(order_kind(kind))


def distinct(values: pa.Array) -> pa.Array:
    """The same, but for one zero."""
    return in_order(pc.add(values.cast(pa.float64()), 0.0) if pa.types.is_floating(values.type) else values)


class _CountDistinct(Aggregate):
    parts: ClassVar[Parts] = (("values", SubKeys()),)

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        kind = order_kind(given)
        return None if kind is None else (pa.large_list(kind),)

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:  # noqa: ARG002
        return (singles(distinct(values), values.is_valid()),)

    def result_kind(self, given: pa.DataType) -> pa.DataType:  # noqa: ARG002 - of any column
        return pa.int64()

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        return pc.list_value_length(state[0]).cast(kind)


def count_distinct(column: str) -> Aggregate:
    """How many different values there are, exactly; nulls do not count. int64.

    A key's state is all of its values: 8 bytes each, of texts and bytes as many as they have and 8. It is written anew
    in each epoch in which the key has rows, so from some 100,000 values a key on use `approx_distinct`. NaN is one
    value, and -0.0 is 0.0.
    """
    return _CountDistinct(column)
