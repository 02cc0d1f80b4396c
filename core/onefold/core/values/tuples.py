"""Tuples of plain Python values by a schema: in the one form that `canonical` gives them, copied, and as keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from onefold.core.values.exact import Family, family

Form: TypeAlias = Callable[[Any], tuple[Any, ...]]

_CONTAINERS = frozenset((list, dict, tuple))


def has_containers(schema: pa.Schema) -> bool:
    """Whether values of the schema can be changed in place."""
    return any(field.type.num_fields for field in schema)


def is_key(kind: pa.DataType) -> bool:
    """Whether equal values of the type have equal forms, and a hash: it has no floats and no maps, at any depth."""
    if family(kind) in (Family.FLOAT, Family.MAP):
        return False
    return all(is_key(kind.field(at).type) for at in range(kind.num_fields))


def form_name(kind: pa.DataType) -> str:
    """Types of one name have the same forms of the same values."""
    if family(kind) is Family.DECIMAL:
        return f"decimal of scale {kind.scale}"
    if family(kind) is Family.STRUCT:  # whose fields are told apart by their places in a key
        inner = [f"{kind[at].name} {form_name(kind[at].type)}" for at in range(kind.num_fields)]
    else:
        inner = [form_name(kind.field(at).type) for at in range(kind.num_fields)]
    return f"{family(kind).value}<{', '.join(inner)}>" if inner else family(kind).value


def copied(value: Any) -> Any:
    """Other containers with the same content."""
    of = type(value)
    if of is list:
        return value.copy() if _CONTAINERS.isdisjoint(map(type, value)) else [*map(copied, value)]
    if of is dict:
        return {key: copied(part) for key, part in value.items()}
    return tuple(map(copied, value)) if of is tuple else value


def hashable(value: Any) -> Any:
    """With tuples in the places of lists and structs."""
    if type(value) is dict:
        value = value.values()
    elif type(value) not in _CONTAINERS:
        return value
    return tuple(map(hashable, value))


def with_shortcut(schema: pa.Schema, exact: Form) -> Form:
    """The same function, which is not called for a tuple whose values have their types' form already, as most do. One
    for the whole schema, made of its text, since a call a value costs several times as much."""
    names: dict[str, Any] = {
        "exact": exact,
        "Decimal": Decimal,
        "date": dt.date,
        "datetime": dt.datetime,
        "UTC": dt.UTC,
    }
    tests = [f"type(value) is tuple and len(value) == {len(schema)}"]
    for number, field in enumerate(schema):
        test = _test(field.type, f"v{number}", names)
        if test is None:
            return exact
        null = "is None or" if field.nullable else "is not None and"
        tests.append(f"((v{number} := value[{number}]) {null} {test})")
    form: Form = eval(f"lambda value: value if {' and '.join(tests)} else exact(value)", names)
    return form


def _test(kind: pa.DataType, value: str, names: dict[str, Any]) -> str | None:
    """Python text: whether the variable `value` has the type's form; None for a type of which no short one tells."""
    match family(kind):
        case Family.BOOLEAN:
            return f"type({value}) is bool"
        case Family.INTEGER:
            is_signed = pa.types.is_signed_integer(kind)
            end = 1 << (kind.bit_width - is_signed)
            return f"type({value}) is int and {-end if is_signed else 0} <= {value} < {end}"
        case Family.FLOAT if kind.bit_width == 64:
            return f"type({value}) is float"
        case Family.DECIMAL:
            names[f"unit{value}"] = Decimal((0, (1,), -kind.scale))
            return (
                f"type({value}) is Decimal and {value}.same_quantum(unit{value})"
                f" and {value}.adjusted() < {kind.precision - kind.scale} and ({value} or not {value}.is_signed())"
            )
        case Family.TEXT:
            return f"type({value}) is str and {value}.isascii()"
        case Family.BINARY if not pa.types.is_fixed_size_binary(kind):
            return f"type({value}) is bytes"
        case Family.DATE:
            return f"type({value}) is date"
        case Family.ZONED if kind.unit == "us":
            return f"type({value}) is datetime and {value}.tzinfo is UTC and not {value}.fold"
        case Family.NAIVE if kind.unit == "us":
            return f"type({value}) is datetime and {value}.tzinfo is None and not {value}.fold"
    return None
