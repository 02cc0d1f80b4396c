"""Single Python values of a type, each in the one form that the type has for it; and copies of those that may change
after they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from onefold.core.values.exact.flat import FLAT, Convert, none, other
from onefold.core.values.exact.kinds import Family, Mismatch, family, is_encoded, lacks, refused, unknown


def canonical(kind: pa.DataType) -> Convert:
    """A function that gives the type's form of a value, and raises `Mismatch` where the type does not take it.

    Equal values of a type have equal forms, exactly of these classes, with nothing in them that is shared with what was
    given: int, bool, float (-0.0 stays), str, bytes, Decimal of the type's scale, date, time, timedelta, datetime (in
    UTC for a type with a zone, without one else; its fold is 0), list, dict for a struct, with all its fields. A map
    stays what it was, a dict, or a list of pairs. None stays None.
    """
    if is_encoded(kind):
        return canonical(kind.value_type)
    make = _MAKERS.get(family(kind))
    return make(kind) if make is not None else none(kind)


def _list(kind: pa.DataType) -> Convert:
    item = _within(kind.value_field, "[]")
    length = kind.list_size if pa.types.is_fixed_size_list(kind) else None

    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return other(value, kind, convert)
        if length is not None and len(value) != length:
            raise refused(value, kind)
        return [item(each) for each in value]

    return convert


def _struct(kind: pa.DataType) -> Convert:
    fields = [(kind[at].name, _within(kind[at], f".{kind[at].name}")) for at in range(kind.num_fields)]
    names = frozenset(name for name, _ in fields)

    def convert(value: Any) -> Any:
        if type(value) is tuple and len(value) == len(fields):
            return {name: of(each) for (name, of), each in zip(fields, value, strict=True)}
        if not isinstance(value, Mapping):
            named = getattr(value, "asDict", None) or getattr(value, "_asdict", None)  # rows of Spark, named tuples
            if not isinstance(value, tuple) or named is None:
                return other(value, kind, convert)
            value = named()
        if not names.issuperset(value):
            raise unknown([name for name in value if name not in names], kind)
        return {name: of(value.get(name)) for name, of in fields}

    return convert


def _map(kind: pa.DataType) -> Convert:
    key, item = _within(kind.key_field, "[]"), _within(kind.item_field, "[]")
    is_hashable = kind.key_type.num_fields == 0

    def convert(value: Any) -> Any:
        is_mapping = isinstance(value, Mapping)
        if not is_mapping and not (isinstance(value, list | tuple) and all(map(_is_pair, value))):
            return other(value, kind, convert)
        pairs = [(key(name), item(each)) for name, each in (value.items() if is_mapping else value)]
        if is_hashable and len({name for name, _ in pairs}) < len(pairs):
            raise refused(value, kind)
        return dict(pairs) if is_mapping and is_hashable else pairs

    return convert


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _within(field: pa.Field, step: str) -> Convert:
    """As `canonical`, of a part of a value."""
    of, nullable = canonical(field.type), field.nullable

    def convert(value: Any) -> Any:
        if value is None:
            if nullable:
                return None
            raise lacks(step, field.type)
        try:
            return of(value)
        except Mismatch as error:
            raise error.below(step) from None

    return convert


_MAKERS: dict[Family, Callable[[pa.DataType], Convert]] = {
    **FLAT,
    Family.LIST: _list,
    Family.STRUCT: _struct,
    Family.MAP: _map,
}


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
