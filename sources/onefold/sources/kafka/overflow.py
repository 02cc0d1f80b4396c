"""Numbers that a text gives and a float cannot hold: parsers make infinities of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["has_infinity", "too_large"]


def has_infinity(array: pa.Array) -> bool:
    """Whether any float in it, at any depth, is infinite."""
    kind = array.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_list(kind):
        return has_infinity(array.flatten())
    if pa.types.is_struct(kind):
        return any(map(has_infinity, array.flatten()))
    return False


def too_large(field: pa.Field) -> str:
    return f"the field {field.name!r} has a number that is too large for its type ({field.type})"
