"""Dataclasses made of what a file says, which may be anybody's word: each field has the type that it declares."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
Test = Callable[[Any], bool]


def checked(of: type[T], values: Mapping[str, Any]) -> T:
    """One of the dataclass `of`. Raises TypeError or ValueError for other fields than its own, and for other types."""
    made = of(**values)
    for name, is_right in _tests(of):  # type: ignore[arg-type]  # a class has a hash
        if not is_right(getattr(made, name)):
            raise TypeError(f"{name} is of another type")
    return made


@lru_cache
def _tests(of: Any) -> list[tuple[str, Test]]:
    return [(name, _test(kind)) for name, kind in typing.get_type_hints(of).items()]


def _test(kind: Any) -> Test:
    """Whether a value is of that type: a class alone, a union, a tuple of any length, a mapping."""
    origin, inner = typing.get_origin(kind), [*map(_test, (each for each in typing.get_args(kind) if each is not ...))]
    if origin in (typing.Union, types.UnionType):
        return lambda value: any(is_right(value) for is_right in inner)
    if origin is tuple:
        return lambda value: type(value) is tuple and all(map(inner[0], value))
    if origin is Mapping:
        return lambda value: type(value) is dict and all(map(inner[0], value)) and all(map(inner[1], value.values()))
    return lambda value: type(value) is kind
