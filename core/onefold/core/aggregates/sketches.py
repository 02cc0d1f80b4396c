"""Sketches: of a key's values some whole numbers, which add up, or of which the greatest stays. So they are equal for
any order of the rows, and however states are merged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates.functions import Aggregate, Merge, Numbers, Parts
from onefold.core.aggregates.sub_keys import SubKeys, distinct, elements_of, order_kind, singles
from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.exact.hashes import hashes_of
from onefold.core.values.exact.late_numpy import np

_BELOW = 46  # bits of a double below those of its bucket: its exponent, and a 64th of the way to the next one
_INFINITY, _NAN = 0x7FF << 6, 0x7FF8 << 2
_BUCKETS = pa.struct({"key": pa.int32(), "number": pa.int64()})
_REGISTERS = 1 << 12
_RANK_MAX = 52  # bits of a hash that are not the register's number
_RANKS = pa.struct({"key": pa.uint16(), "number": pa.uint8()})
_SIGMA_STEPS = 24  # after which nothing is added any more to what is below 1 - 1/4096


@dataclass(frozen=True)
class _Quantiles(Aggregate):
    """Of DDSketch (arXiv 1908.10693), with the buckets of its mapping by bits: 64 between a power of two and the next.
    A bucket's middle is at most 1/128 from its values."""

    at: tuple[float, ...]
    is_list: bool
    parts: ClassVar[Parts] = (("buckets", SubKeys(Merge.SUM)),)

    def __str__(self) -> str:
        return f"{'quantiles' if self.is_list else 'quantile'}({self.column}, {', '.join(map(str, self.at))})"

    def keeps(self) -> str:
        return f"quantiles({self.column})"

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        is_number = pa.types.is_integer(given) or pa.types.is_floating(given) or pa.types.is_decimal(given)
        return (pa.large_list(_BUCKETS),) if is_number else None

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:  # noqa: ARG002
        floats = pc.fill_null(values.cast(pa.float64(), safe=False), 0.0).to_numpy()
        buckets = np.abs(floats).view(np.int64) >> _BELOW
        buckets[np.isnan(floats)] = _NAN
        signed = np.where(floats < 0, -buckets, buckets).astype(np.int32)
        ones = np.ones(len(floats), np.int64)
        return (singles(pa.StructArray.from_arrays([signed, ones], fields=[*_BUCKETS]), values.is_valid()),)

    def result_kind(self, given: pa.DataType) -> pa.DataType:  # noqa: ARG002 - of any number
        return pa.list_(pa.float64()) if self.is_list else pa.float64()

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:  # noqa: ARG002
        elements, groups = elements_of(state[0], np.arange(len(state[0])))
        buckets, numbers = (column.to_numpy() for column in elements.flatten())
        if numbers.sum(dtype=np.float64) >= 2**62:
            raise BadRecord("aggregate-overflow", f"{self} is of more rows than 64 bits count")
        order = np.lexsort((buckets, groups))
        values = np.append(_middles(buckets[order]), 0.0)
        up_to = np.concatenate(([0], np.cumsum(numbers[order])))
        bounds = np.append(0, np.cumsum(pc.list_value_length(state[0]).to_numpy()))
        before, rows = up_to[bounds[:-1]], np.diff(up_to[bounds])
        ranks = [before + np.clip((at * (rows - 1)).astype(np.int64), 0, rows - 1) for at in self.at]
        found = [values[np.searchsorted(up_to[1:], rank, "right")] for rank in ranks]
        if not self.is_list:
            return pa.array(found[0], mask=rows == 0)
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * len(self.at)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(np.stack(found, 1).ravel()), mask=pa.array(rows == 0)
        )


def _middles(buckets: Numbers) -> Numbers:
    size = np.abs(buckets).astype(np.int64)
    values = ((size << _BELOW) | (1 << (_BELOW - 1))).view(np.float64)
    values[size == 0], values[size == _INFINITY] = 0.0, np.inf
    return np.copysign(values, buckets) + 0.0


class _ApproxDistinct(Aggregate):
    """HyperLogLog with 4,096 registers, and the estimate of Ertl (arXiv 1702.01284), which needs no tables."""

    parts: ClassVar[Parts] = (("registers", SubKeys(Merge.MAX)),)

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        return None if order_kind(given) is None else (pa.large_list(_RANKS),)

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:  # noqa: ARG002
        hashes = hashes_of([distinct(values)], len(values))
        rest = (hashes & np.uint64((1 << _RANK_MAX) - 1)).astype(np.float64)
        ranks = np.minimum(_RANK_MAX + 1 - np.frexp(rest)[1], _RANK_MAX).astype(np.uint8)
        registers = (hashes >> np.uint64(_RANK_MAX)).astype(np.uint16)
        return (singles(pa.StructArray.from_arrays([registers, ranks], fields=[*_RANKS]), values.is_valid()),)

    def result_kind(self, given: pa.DataType) -> pa.DataType:  # noqa: ARG002 - of any column
        return pa.int64()

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        elements, _ = elements_of(state[0], np.arange(len(state[0])))
        used = pc.list_value_length(state[0]).to_numpy()
        weights = np.uint64(1) << (np.uint64(_RANK_MAX) - elements.field(1).to_numpy().astype(np.uint64))
        up_to = np.concatenate((np.zeros(1, np.uint64), np.cumsum(weights)))[np.append(0, np.cumsum(used))]
        total = np.diff(up_to).astype(np.float64) / (1 << _RANK_MAX)  # each is 2**63 at most, whatever all add up to
        share = 1 - used / _REGISTERS  # of registers that nothing has come to
        sigma, power = share.copy(), 1.0
        for _ in range(_SIGMA_STEPS):
            share = share * share
            sigma += share * power
            power *= 2
        found = _REGISTERS**2 / (2 * math.log(2)) / (total + _REGISTERS * sigma)
        return pa.array(np.rint(found).astype(np.int64), kind)


def approx_distinct(column: str) -> Aggregate:
    """About how many different values there are, by HyperLogLog: with a standard error of 1.6 %; nulls do not count.
    int64.

    A key's state is at most 4,096 registers of 3 bytes, and one for each value as long as these are few. It is the same
    for any order of the rows.
    """
    return _ApproxDistinct(column)


def quantile(column: str, at: float) -> Aggregate:
    """The value that a share `at` of the others is below, as `quantile("ms", 0.99)`: within 1 % of the value that is at
    the place floor(at * (n - 1)) of all n in their order. double; null where all are.

    Of integers, floats and decimals, by a sketch: a key's state is 12 bytes for each bucket that has values, of which
    64 are between a power of two and the next. It is the same for any order of the rows. Zero is exact, infinities too;
    NaN is above all other numbers. Numbers that are nearer to 0 than 1e-307 are that by an error of 1e-309.
    """
    return _Quantiles(column, _checked([at]), is_list=False)


def quantiles(column: str, at: Sequence[float]) -> Aggregate:
    """Several quantiles of one sketch: `quantiles("ms", [0.5, 0.99])`. A list of doubles in that order; null where all
    values are."""
    return _Quantiles(column, _checked(at), is_list=True)


def _checked(at: Sequence[float]) -> tuple[float, ...]:
    if not at or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in at):
        raise ConfigError("option-value", f"a quantile is at 0 to 1, as 0.99, and not at {at!r:.100}")
    return tuple(map(float, at))
