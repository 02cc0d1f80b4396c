"""Options as texts: Spark's data source options have a dataclass' fields, their names in camel case.

A field's metadata may say otherwise:

    option  its name in Spark: None where it has none; with a dot at the end, what the names of many options begin with
    whole   True: its text is one value, though the field takes a sequence too
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from onefold.clients.options import no_option
from onefold.core.errors import ConfigError

HIDDEN = "secret."  # before an option's name: Spark then leaves its value out of plans and logs

_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')  # outside of quotes


def to_texts(options: Any) -> dict[str, str]:
    """The options of a dataclass that differ from their defaults, by their names in Spark."""
    texts: dict[str, str] = {}
    for name, field in option_fields(type(options)).items():
        value = getattr(options, field.name)
        if name.endswith("."):
            texts |= {f"{name}{inner}": text for inner, text in (value or {}).items()}
        elif value is not None and value != field.default:
            texts[name] = _text(value, _per_unit(name, field))
    return texts


def from_texts(
    label: str,
    texts: Mapping[str, str],
    *models: type,
    required: Sequence[str] = (),
    refused: Mapping[str, str] | None = None,
    beside: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of the models that the texts give. The case of names makes no difference, nor does HIDDEN.

    Raises ConfigError for a name that no model has, with the reason where `refused` has it, for a text that is not of
    the field's type, and for a missing field that is `required`. `beside` are names that somebody else reads. `label`
    names the format in errors.
    """
    fields = option_fields(*models)
    hints = {name: hint for model in models for name, hint in typing.get_type_hints(model).items()}
    proper = {name.lower(): name for name in (*fields, *beside)}
    found: dict[str, Any] = {}
    for given, text in texts.items():
        lower = given.lower().removeprefix(HIDDEN)
        if reason := (refused or {}).get(lower):
            raise ConfigError("option-not-allowed", f"{label} has no option {given!r}: {reason}")
        name = proper.get(lower) or next((name for name in fields if name.endswith(".") and lower.startswith(name)), "")
        if not name:
            raise no_option(label, given, proper.values())
        if name.endswith("."):
            found.setdefault(fields[name].name, {})[lower.removeprefix(name)] = text
        elif name in fields:
            field = fields[name]
            hint = str if field.metadata.get("whole") else hints[field.name]
            found[field.name] = _value(name, text, hint, _per_unit(name, field))
    for name, field in fields.items():
        if field.name in required and not found.get(field.name):
            raise ConfigError("option-missing", f"{label}: the option {name!r} is missing")
    return found


def with_names_of_spark(message: str, *models: type) -> str:
    """The message of an error with the options' names as Spark has them. A name of one word stands before `=`;
    behind a quote there is a value."""
    for name, field in option_fields(*models).items():
        word = rf"\b(?<!'){field.name}\b" + ("" if "_" in field.name else "(?==)")
        message = re.sub(word, f"{name}*" if name.endswith(".") else name, message)
    return message


def option_fields(*models: type) -> dict[str, dataclasses.Field[Any]]:
    """The models' fields that are options of Spark's, by their names there."""
    fields = [field for model in models for field in dataclasses.fields(model) if field.init]
    named = {field.metadata.get("option", _camel_case(field.name)): field for field in fields}
    return {name: field for name, field in named.items() if name is not None}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _per_unit(name: str, field: dataclasses.Field[Any]) -> int:
    """Times are seconds in Python; an option may be in milliseconds, as Spark's Kafka connector has it."""
    return 1000 if name.endswith("Ms") and field.name.endswith("_s") else 1


def _text(value: Any, per_unit: int) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_quoted(part) for part in value)
    return str(int(value * per_unit)) if per_unit != 1 else str(value)


def _value(name: str, text: str, hint: Any, per_unit: int) -> Any:
    """The text as what the field's annotation wants."""
    kinds = list(_kinds(hint))
    for kind, (form, read) in _READ.items():
        if kind in kinds:
            try:
                return read(text) / per_unit if per_unit != 1 else read(text)
            except (ValueError, KeyError):
                raise ConfigError("option-value", f"{name} is {form}, not {text!r}") from None
    if Sequence not in kinds:
        return _word(text, kinds)
    return [_word(_unquoted(part.strip()), kinds) for part in _COMMA.split(text)] if text.strip() else []


def _kinds(hint: Any) -> Iterator[Any]:
    """The types that an annotation names, and the words of its Literals; of a sequence its items' too."""
    match typing.get_origin(hint):
        case typing.Union | types.UnionType:
            for part in typing.get_args(hint):
                yield from _kinds(part)
        case typing.Literal:
            yield from typing.get_args(hint)
        case origin if origin is Sequence:
            yield Sequence
            yield from _kinds(typing.get_args(hint)[0])
        case origin:
            yield origin or hint


def _word(text: str, kinds: Collection[Any]) -> str:
    """Words that an option knows may be written in any case."""
    word = text.strip().lower()
    return word if word in kinds else text


_READ: dict[type, tuple[str, Callable[[str], Any]]] = {
    int: ("a number", int),
    float: ("a number", float),
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.strip().lower()]),
}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if re.search(r'[",]|^\s|\s$', name) else name


def _unquoted(name: str) -> str:
    is_quoted = len(name) >= 2 and name[0] == name[-1] == '"'
    return name[1:-1].replace('""', '"') if is_quoted else name
