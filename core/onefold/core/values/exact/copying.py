"""Copies of values that may change after they were given."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from onefold.core.values.exact.canonical import canonical
from onefold.core.values.exact.flat import Convert
from onefold.core.values.exact.kinds import Family, family

__all__ = ["copies", "is_mutable"]


def is_mutable(kind: pa.DataType) -> bool:
    """Whether the type takes values that may change: lists, dicts, byte arrays."""
    return family(kind) in (Family.LIST, Family.STRUCT, Family.MAP, Family.BINARY)


def copies(kind: pa.DataType) -> Convert:
    """A function that copies a value of the type, as deep as it may change. Raises `Mismatch` for one of another class
    than list, tuple and dict that the type does not take."""
    convert = canonical(kind)
    if family(kind) is Family.LIST:
        return _lists(kind.value_type, convert)
    if family(kind) is Family.STRUCT:
        return _structs(kind, convert)
    return convert


def _lists(kind: pa.DataType, convert: Convert) -> Convert:
    if not is_mutable(kind):
        return lambda value: value[:] if type(value) is list or type(value) is tuple else convert(value)
    item = copies(kind)
    return lambda value: list(map(item, value)) if type(value) is list or type(value) is tuple else convert(value)


def _structs(kind: pa.DataType, convert: Convert) -> Convert:
    fields = [kind[at] for at in range(kind.num_fields)]
    parts = [(field.name, copies(field.type)) for field in fields if is_mutable(field.type)]

    def copied(value: Any) -> Any:
        if type(value) is not dict:
            return convert(value)
        found = value.copy()
        for name, of in parts:
            if name in found:
                found[name] = of(found[name])
        return found

    return copied
