"""What is within the values of an array."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["inside"]


def inside(array: pa.Array) -> list[pa.Array]:
    """The arrays that a list, a map or a struct is made of, without what lies below nulls and outside of a slice."""
    kind = array.type
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_struct(array.type):
        parts: list[pa.Array] = array.flatten()
        return parts
    return [array.flatten()] if array.type.num_fields else []
