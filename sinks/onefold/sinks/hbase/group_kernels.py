"""Aggregates values by key, over Arrow arrays.

`codes` number the keys from 0 on, in the order in which they first come; a result has one value per code, in that
order. Each function may be applied again to its own results, in any split and any order of the rows, with the same
result. Only sums of doubles depend on the order, in their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def grouped(codes: pa.Int32Array, columns: Sequence[tuple[pa.Array, str]]) -> list[pa.Array]:
    """Aggregates each column by its own Arrow function: sum, min or max. Nulls are ignored; only nulls give null."""
    table = pa.table([codes, *(values for values, _ in columns)], names=[*map(str, range(len(columns) + 1))])
    folded = table.group_by("0", use_threads=False).aggregate(
        [(str(i), function) for i, (_, function) in enumerate(columns, 1)]
    )
    return [folded[f"{i}_{function}"].combine_chunks() for i, (_, function) in enumerate(columns, 1)]


def latest(codes: pa.Int32Array, order: Sequence[pa.Array], values: Sequence[pa.Array]) -> pa.Int64Array:
    """The place of each code's last row by `order`. A row whose order is null comes before all others.

    Where the order is equal, the values decide, so that the same row wins whichever comes first.
    """
    columns = [codes, *(pc.is_valid(column) for column in order), *order, *values]
    table = pa.table(columns, names=[*map(str, range(len(columns)))])
    places = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    by_code = codes.take(places)
    is_last = pa.concat_arrays([pc.not_equal(by_code[1:], by_code[:-1]), pa.array([True])[: len(codes)]])
    return places.filter(is_last)


def sets(values: pa.Array) -> pa.ListArray:
    """The values as sets: a plain value becomes a set of one, a list stays, null stays null."""
    if pa.types.is_list(values.type):
        return values
    if pa.types.is_large_list(values.type):
        return values.cast(pa.list_(values.type.value_type))
    offsets = pa.array(range(len(values) + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=values.is_null())


def unions(codes: pa.Int32Array, lists: pa.ListArray) -> pa.ListArray:
    """The union of each code's sets, ascending and each value once; nulls within them are left out."""
    n = 1 + pc.max(codes).as_py()
    codes, lists = codes.filter(lists.is_valid()), lists.drop_null()  # a null may hide members
    members = pa.table({"code": codes.take(pc.list_parent_indices(lists)), "value": pc.list_flatten(lists)})
    members = members.filter(members["value"].is_valid()).group_by(["code", "value"], use_threads=False).aggregate([])
    members = members.sort_by([("code", "ascending"), ("value", "ascending")]).combine_chunks()
    sizes = np.bincount(members["code"].to_numpy(), minlength=n)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    is_null = np.bincount(codes.to_numpy(), minlength=n) == 0
    values = members["value"].combine_chunks()
    return pa.ListArray.from_arrays(offsets, values, type=lists.type, mask=pa.array(is_null))
