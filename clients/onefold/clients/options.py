"""Options of sources and sinks: a frozen dataclass says each name, type and default once.

A source is its dataclass; a sink's constructor takes its dataclass' fields (`constructed_from`).
Spark's data source options are made of the same dataclasses: option_texts.py.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from onefold.core.errors import ConfigError
from onefold.core.values.names import near

P = ParamSpec("P")
Model = TypeVar("Model")
Self = TypeVar("Self")


def options_model(model: type[Model]) -> type[Model]:
    """Decorates a dataclass of options: a call that does not fit its fields, or a word that is none of a field's
    Literal, raises ConfigError.

    The error names what the user called: the class itself, or of a sink's `KafkaSinkConfig` the `KafkaSink`.
    """
    init = model.__init__

    @functools.wraps(init)
    def construct(self: Model, /, *args: Any, **kwargs: Any) -> None:
        kind: Any = type(self)
        label, signature = kind.__name__.removesuffix("Config"), inspect.signature(model)
        for name in kwargs:
            if name not in signature.parameters:
                raise no_option(label, name, signature.parameters)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ConfigError("option-missing", f"{label}: {error}") from None
        for name, words in _words(kind).items():
            if (word := given.get(name, words[0])) not in words:
                said = f"{label}: {name} is {' or '.join(map(repr, words))}, not {word!r}{near(str(word), words)}"
                raise ConfigError("option-value", said)
        init(self, *args, **kwargs)

    setattr(model, "__init__", construct)  # noqa: B010 - mypy takes the assignment for a mistake
    return model


@functools.cache
def _words(model: Any) -> dict[str, tuple[str, ...]]:
    """What a field may be that takes a few words only."""
    hints = typing.get_type_hints(model)
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}


def constructed_from(
    model: Callable[P, Model],
) -> Callable[[Callable[[Self, Model], None]], Callable[Concatenate[Self, P], None]]:
    """Decorates an `__init__` that takes the options as one value: callers give the model's own arguments. What is made
    keeps them as `given`."""

    def decorate(init: Callable[[Self, Model], None]) -> Callable[Concatenate[Self, P], None]:
        def construct(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            options = model(*args, **kwargs)
            init(self, options)
            setattr(self, "given", options)  # noqa: B010 - of any class

        parameters = inspect.signature(model).parameters.values()
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        setattr(construct, "__signature__", inspect.Signature([own, *parameters]))  # noqa: B010 - for help() and editors
        return construct

    return decorate


def in_one_form(options: object, **values: object) -> None:
    """Sets fields of a frozen dataclass that is being made: users give them in several forms, and readers want one."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """As users name columns or topics: one, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def no_option(label: str, name: str, known: Collection[str]) -> ConfigError:
    return ConfigError(
        "option-unknown", f"{label} has no option {name!r}" + (near(name, known) or f"; known are {', '.join(known)}")
    )
