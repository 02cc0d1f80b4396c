"""Whether the fields of a pipeline have values of their types, and times are ones: Python itself takes any."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onefold.core import ConfigError, Sink

_SECONDS_MAX = 366 * 86_400.0

_NAMES: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Sequence: "a list",
    Mapping: "a mapping",
    Callable: "a function",
    types.NoneType: "nothing",
}


def check_types(options: Any) -> None:
    """Raise ConfigError for the first field of this dataclass whose value is not what its annotation says. No value is
    quoted, but for one that should be one of several words: it may be a secret."""
    hints = typing.get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        if not _fits(value, hint):
            given = repr(value) if typing.get_origin(hint) is typing.Literal else f"of type {type(value).__name__}"
            raise ConfigError("option-value", f"{field.name} is {_said(hint)}, not {given}")


def check_seconds(name: str, value: float) -> None:
    """Raise ConfigError unless it is a time that can be waited for: above 0, and a year at most."""
    if not 0 < value <= _SECONDS_MAX:  # nan is neither
        raise ConfigError("option-value", f"{name} is a number of seconds above 0, a year at most, not {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return value in args
        case typing.Union | types.UnionType:
            return any(_fits(value, one) for one in args)
        case collections.abc.Callable:
            return callable(value)
        case collections.abc.Sequence:
            return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(v, args[0]) for v in value)
        case collections.abc.Mapping:
            return isinstance(value, Mapping) and all(_fits(k, args[0]) and _fits(v, args[1]) for k, v in value.items())
    if hint is Sink:  # a Protocol
        return isinstance(getattr(value, "name", None), str) and callable(getattr(value, "recover", None))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _said(hint: Any) -> str:
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return " or ".join(map(repr, args))
        case typing.Union | types.UnionType:
            return " or ".join(_said(one) for one in args if one is not types.NoneType)
        case collections.abc.Sequence:
            return f"a list of {args[0].__name__}s"
        case None:
            return _NAMES.get(hint) or f"a {hint.__name__}"
        case origin:
            return _NAMES[origin]
