"""Dataclasses made of what a file says, which may be anybody's word: each field has the type that it declares."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

__all__ = ["checked"]

T = TypeVar("T")


def checked(of: type[T], values: Mapping[str, Any]) -> T:
    """One of the dataclass `of`. Raises TypeError or ValueError for other fields than its own, and for other types."""
    made = of(**values)
    for name, kind in _kinds(of).items():
        if not _is_of(getattr(made, name), kind):
            raise TypeError(f"{name} is of another type")
    return made


@lru_cache
def _kinds(of: type) -> dict[str, Any]:
    return typing.get_type_hints(of)


def _is_of(value: object, kind: Any) -> bool:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(value, each) for each in inner)
    if origin is tuple:  # of any length
        return isinstance(value, tuple) and all(_is_of(each, inner[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_is_of(k, inner[0]) and _is_of(v, inner[1]) for k, v in value.items())
    return type(value) is kind
