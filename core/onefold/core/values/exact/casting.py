"""Arrow arrays of one type as those of another: exactly, at any depth, or not at all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.ddl import type_name
from onefold.core.values.exact.kinds import TAKES, Family, Mismatch, family, lacks, shown, unknown

_WIDE_MAX = 76  # digits of 256 bits
_HALF_MAX = 2**11  # up to which 16 bits of a float have all integers; pyarrow looks at the longer ones itself


def exact_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as another type. Raises `Mismatch` for the first that this type does not take.

    By the package's table, which goes by types where pyarrow's safe cast goes by values: a column of doubles is no
    column of integers, also where all of them are whole. A column of nulls without a type is of any type.
    """
    given = array.type
    if given == kind:
        return array
    if pa.types.is_dictionary(given):
        return exact_cast(array.dictionary_decode(), kind)
    if pa.types.is_run_end_encoded(given):
        return exact_cast(pc.run_end_decode(array), kind)
    if pa.types.is_dictionary(kind):
        return _safely(exact_cast(array, kind.value_type).dictionary_encode(), kind)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(exact_cast(array, kind.value_type), kind.run_end_type)
    source, wanted = family(given), family(kind)
    if source is Family.NULL and wanted is not Family.OTHER:
        return pa.nulls(len(array), kind)
    cast = _CASTS.get((source, wanted))
    if cast is None:
        first = pc.index(array.is_valid(), True).as_py()
        raise _mismatch(array, kind, first if first >= 0 else None)
    return cast(array, kind)


def _mismatch(array: pa.Array, kind: pa.DataType, row: int | None) -> Mismatch:
    value = "" if row is None else f"{_shown(array[row])} "
    return Mismatch(f"{value}({type_name(array.type)})", f"{type_name(kind)} {TAKES[family(kind)]}", row=row)


def _shown(scalar: pa.Scalar) -> str:
    try:
        return shown(scalar.as_py())
    except (ValueError, OverflowError, pa.ArrowException):  # what Python's own types do not have
        return str(scalar.cast(pa.string()))


def _tried(array: pa.Array, kind: pa.DataType, cast: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """What `cast` makes of the array. Where it raises, the first row to blame is found by halves."""
    try:
        return cast(array)
    except (pa.ArrowException, OverflowError):
        row, rows = 0, len(array)
        while rows > 1:
            half = rows // 2
            try:
                cast(array.slice(row, half))
            except (pa.ArrowException, OverflowError):
                rows = half
            else:
                row, rows = row + half, rows - half
        raise _mismatch(array, kind, row if len(array) else None) from None


def _safely(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return _tried(array, kind, lambda part: part.cast(kind))


def _to_float(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Of integers."""
    if pa.types.is_float16(kind):

        def cast(part: pa.Array) -> pa.Array:
            if pc.any(pc.greater(pc.abs_checked(part.cast(pa.int64())), _HALF_MAX)).as_py():
                raise pa.ArrowInvalid("beyond the integers of 16 bits")
            return part.cast(kind)

        return _tried(array, kind, cast)
    return _safely(array, kind)


def _between_floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    cast = array.cast(kind)
    if kind.bit_width >= array.type.bit_width:
        return cast
    there, back = array.cast(pa.float64()), cast.cast(pa.float64())
    differs = pc.and_(pc.not_equal(there, back), pc.invert(pc.is_nan(there)))
    if pc.any(differs).as_py():
        raise _mismatch(array, kind, pc.index(differs, True).as_py())
    return cast


def _to_decimal(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Of integers, and of decimals."""
    if not pa.types.is_decimal(array.type):
        array = array.cast(pa.decimal128(20, 0))  # digits of 2^64
    if kind.bit_width < 128 and kind.scale != array.type.scale:  # pyarrow loses digits on its way into 32 and 64 bits
        array = _to_decimal(array, pa.decimal128(kind.precision, kind.scale))
    more = kind.scale - array.type.scale
    if more > 0:
        # pyarrow multiplies in the bits that the type has, without a sound look whether the product fits.
        if array.type.precision + more > _WIDE_MAX:
            raise _mismatch(array, kind, None)
        wide = pa.decimal256(_WIDE_MAX, array.type.scale)
        return _tried(array, kind, lambda part: part.cast(wide).cast(kind))
    return _safely(array, kind)


def _list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    items, nulls = array.flatten(), array.is_null()  # without what lies below nulls, and outside of a slice
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    starts = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    parts = _part(items, kind.value_field, "[]", starts)
    if kind.num_fields == 1 and pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(starts, parts, type=kind, mask=nulls)
    made = pa.ListArray.from_arrays(starts.cast(pa.int32()), parts, type=pa.list_(kind.value_field), mask=nulls)
    return made if made.type == kind else _safely(made, kind)


def _map(array: pa.Array, kind: pa.DataType) -> pa.Array:
    pairs = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    fields = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    given = pairs.flatten()
    items = pa.StructArray.from_arrays([given.field(0), given.field(1)], names=["key", "value"])
    nulls = pairs.is_null()
    lengths = pc.fill_null(pc.list_value_length(pairs), 0).cast(pa.int64())
    starts = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    keys, values = (_part(items.field(at), fields[at], "[]", starts) for at in (0, 1))
    return pa.MapArray.from_arrays(starts.cast(pa.int32()), keys, values, type=kind, mask=nulls)


def _struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    given = [array.type[at].name for at in range(array.type.num_fields)]
    fields = [kind[at] for at in range(kind.num_fields)]
    if odd := [name for name in given if name not in {field.name for field in fields} or given.count(name) > 1]:
        raise unknown(odd, kind)
    places = {name: at for at, name in enumerate(given)}
    parts, nulls = array.flatten(), array.is_null()
    children = []
    for field in fields:
        part = parts[places[field.name]] if field.name in places else pa.nulls(len(array), field.type)
        children.append(_part(part, field, f".{field.name}", None, nulls))
    if not fields:
        return _safely(array, kind)
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)


def _part(
    part: pa.Array, field: pa.Field, step: str, starts: pa.Array | None, nulls: pa.Array | None = None
) -> pa.Array:
    """What is in lists, which begin at `starts`, or in structs, which may be null themselves."""

    def row_of(at: int | None) -> int | None:
        return at if starts is None or at is None else bisect_right(starts.to_pylist(), at) - 1

    if not field.nullable and part.null_count:
        absent = part.is_null() if nulls is None else pc.and_not(part.is_null(), nulls)
        if pc.any(absent).as_py():
            error = lacks(step, field.type)
            raise Mismatch(error.value, error.reason, error.path, row_of(pc.index(absent, True).as_py()))
    try:
        return exact_cast(part, field.type)
    except Mismatch as error:
        raise error.below(step, row_of(error.row)) from None


_CASTS: dict[tuple[Family, Family], Callable[[pa.Array, pa.DataType], pa.Array]] = {
    **{
        (same, same): _safely
        for same in Family
        if same not in (Family.NULL, Family.FLOAT, Family.DECIMAL, Family.LIST, Family.STRUCT, Family.MAP, Family.OTHER)
    },
    (Family.DECIMAL, Family.INTEGER): _safely,
    (Family.BINARY, Family.TEXT): _safely,
    (Family.TEXT, Family.BINARY): _safely,
    (Family.INTEGER, Family.FLOAT): _to_float,
    (Family.FLOAT, Family.FLOAT): _between_floats,
    (Family.INTEGER, Family.DECIMAL): _to_decimal,
    (Family.DECIMAL, Family.DECIMAL): _to_decimal,
    (Family.LIST, Family.LIST): _list,
    (Family.STRUCT, Family.STRUCT): _struct,
    (Family.MAP, Family.MAP): _map,
}
