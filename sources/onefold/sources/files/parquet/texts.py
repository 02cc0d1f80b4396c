"""Texts of Parquet files, of which nobody has looked whether they are UTF-8."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.exact import Mismatch, exact_cast
from onefold.sources.files.parquet.nested import inside

__all__ = ["check_texts"]


def check_texts(array: pa.Array) -> None:
    """Raises `Mismatch` for a text that is no UTF-8; without its row where it is within another value."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if _are_texts(kind.value_type) and not _is_ascii(array.dictionary):
            check_texts(array.dictionary_decode())
    elif _are_texts(kind) and not _is_ascii(array):
        exact_cast(array.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()), kind)
    for part in inside(array):
        try:
            check_texts(part)
        except Mismatch as error:
            raise error.below("[]") from None


def _are_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_ascii(array: pa.Array) -> bool:
    """Whether no byte of all its texts has the highest bit."""
    width = pa.int32() if pa.types.is_string(array.type) else pa.int64()
    if not len(array):
        return True
    ends = pa.Array.from_buffers(width, len(array) + 1, [None, array.buffers()[1]], offset=array.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    if first == last:
        return True
    signed = pa.Array.from_buffers(pa.int8(), last - first, [None, array.buffers()[2]], offset=first)
    return bool(pc.min_max(signed)["min"].as_py() >= 0)
