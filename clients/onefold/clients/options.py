"""Options of sources and sinks: a frozen dataclass says each name, type and default once.

A source is its dataclass (`options_model`); a sink's constructor takes its dataclass' fields (`constructed_from`).
Spark's data source options are made of the same dataclasses: option_texts.py.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from onefold.core.errors import ConfigError

__all__ = ["configured", "constructed_from", "in_one_form", "near", "no_option", "options_model"]

P = ParamSpec("P")
Model = TypeVar("Model")
Self = TypeVar("Self")


def constructed_from(
    model: Callable[P, Model],
) -> Callable[[Callable[[Self, Model], None]], Callable[Concatenate[Self, P], None]]:
    """Decorates an `__init__` that takes the options as one value: callers give the model's own arguments."""

    def decorate(init: Callable[[Self, Model], None]) -> Callable[Concatenate[Self, P], None]:
        def construct(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, configured(type(self).__name__, model, args, kwargs))

        parameters = inspect.signature(model).parameters.values()
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        setattr(construct, "__signature__", inspect.Signature([own, *parameters]))  # noqa: B010 - for help() and editors
        return construct

    return decorate


def options_model(model: type[Model]) -> type[Model]:
    """Decorates a dataclass that users make themselves: a call that does not fit its fields raises ConfigError."""
    init = model.__init__

    @functools.wraps(init)
    def construct(self: Model, /, *args: Any, **kwargs: Any) -> None:
        _check_call(type(self).__name__, model, args, kwargs)
        init(self, *args, **kwargs)

    setattr(model, "__init__", construct)  # noqa: B010 - mypy takes the assignment for a mistake
    return model


def configured(label: str, model: Callable[..., Model], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Model:
    """The model that a call of `label` describes. Raises ConfigError for arguments that are none of its fields."""
    _check_call(label, model, args, kwargs)
    return model(*args, **kwargs)


def _check_call(label: str, model: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    signature = inspect.signature(model)
    for name in kwargs:
        if name not in signature.parameters:
            raise no_option(label, name, signature.parameters)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{label}: {error}") from None


def in_one_form(options: object, **values: object) -> None:
    """Sets fields of a frozen dataclass that is being made: users give them in several forms, and readers want one."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


def no_option(label: str, name: str, known: Collection[str]) -> ConfigError:
    """The error for an option that there is not, with the nearest one that there is."""
    proper = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), list(proper), 1)
    hint = f"did you mean {proper[close[0]]!r}?" if close else f"known are {', '.join(known)}"
    return ConfigError(f"{label} has no option {name!r}; {hint}")


def near(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), 1) if name and name not in known else []
    return f"; did you mean {close[0]!r}?" if close else ""
