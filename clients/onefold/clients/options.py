"""Options of sources and sinks: a frozen dataclass says each name, type and default once.

The constructor takes the dataclass' fields (`constructed_from`); Spark's data source options are the same names in
Spark's style, and the same values as texts (`to_texts`, `from_texts`).
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from onefold.core.errors import ConfigError

__all__ = ["constructed_from", "from_texts", "text_name", "to_texts"]

P = ParamSpec("P")
Model = TypeVar("Model")
Self = TypeVar("Self")


def constructed_from(
    model: Callable[P, Model],
) -> Callable[[Callable[[Self, Model], None]], Callable[Concatenate[Self, P], None]]:
    """Decorates an `__init__` that takes the options as one value: callers give the model's own arguments."""

    def decorate(init: Callable[[Self, Model], None]) -> Callable[Concatenate[Self, P], None]:
        def construct(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, model(*args, **kwargs))

        parameters = inspect.signature(model).parameters.values()
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        setattr(construct, "__signature__", inspect.Signature([own, *parameters]))  # noqa: B010 - for help() and editors
        return construct

    return decorate


def text_name(name: str) -> str:
    """An option's name in Spark's style."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def to_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Options as texts; an option that is None is left out."""
    return {
        text_name(name): json.dumps(value) if isinstance(value, Mapping) else str(value)
        for name, value in values.items()
        if value is not None
    }


def from_texts(label: str, texts: Mapping[str, str], *models: type, required: Sequence[str]) -> dict[str, Any]:
    """The fields of the models that the texts give. The case of names makes no difference.

    Raises ConfigError for a name that no model has, a text that is no number where a number is wanted, and a missing
    option that is `required`. `label` names the format in errors.
    """
    known = {field.name: field for model in models for field in dataclasses.fields(model) if field.init}
    names = {text_name(name).lower(): name for name in known}
    found: dict[str, Any] = {}
    for option, text in texts.items():
        name = names.get(option.lower())
        if name is None:
            near = difflib.get_close_matches(option.lower(), names, 1)
            hint = f"did you mean {text_name(names[near[0]])!r}?" if near else ""
            hint = hint or f"known are {', '.join(map(text_name, known))}"
            raise ConfigError("option-unknown", f"{label} has no option {option!r}; {hint}")
        found[name] = _parsed(name, text, str(known[name].type))
    for name in required:
        if not found.get(name):
            raise ConfigError("option-missing", f"{label} cannot read: the option {text_name(name)!r} is missing")
    return found


def _parsed(name: str, text: str, annotation: str) -> Any:
    """The text as the number that the annotation asks for, or as it is."""
    words = {word.strip() for word in annotation.split("|")}
    kind = next((kind for kind in (int, float) if kind.__name__ in words), str)
    try:
        return kind(text)
    except ValueError:
        raise ConfigError("option-value", f"{text_name(name)} is a number, not {text!r}") from None
