"""Texts of Parquet files, of which nobody has looked whether they are UTF-8."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.exact import exact_cast

__all__ = ["check_texts"]


def check_texts(array: pa.Array) -> None:
    """Raises `Mismatch` for a text that is no UTF-8, or ArrowInvalid where it is within another value."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary, kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if not _is_ascii(array):
            exact_cast(array.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()), kind)
    elif kind.num_fields:
        array.validate(full=True)


def _is_ascii(array: pa.Array) -> bool:
    """Whether all its bytes are, looked at as one text."""
    width = pa.int32() if pa.types.is_string(array.type) else pa.int64()
    if not len(array):
        return True
    ends = pa.Array.from_buffers(width, len(array) + 1, [None, array.buffers()[1]], offset=array.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    if first == last:
        return True
    bytes_ = array.buffers()[2][first:last]
    whole = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.array([0, last - first], pa.int64()).buffers()[1], bytes_]
    )
    return bool(pc.string_is_ascii(whole)[0].as_py())
