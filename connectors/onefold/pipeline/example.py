"""Writes a pipeline's file for somebody to fill in: all keys that there are, those that are needed with a value."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic.fields import FieldInfo

from onefold.pipeline.toml_models import FileTable, file_table, tables_in

_INTRODUCTION = """\
# A pipeline of onefold. What is commented out is the default; where there is none, ... stands for a value of yours.
#
#   onefold validate FILE    checks it, and asks no server
#   onefold doctor FILE      asks its servers, changes nothing, and says what the pipeline guarantees
#   onefold run FILE         runs it
#
# Secrets: "${NAME}" is an environment variable, "${file:PATH}" the content of a file, and password_file the file with
# the password of a url's user. Paths begin in this file's folder."""

_SOURCE = {
    "topics": "NAME",
    "bootstrap_servers": "localhost:9092",
    "format": "json",
    "schema": "id long, account long, amount decimal(12,2), at timestamp",
}
_SINKS: Mapping[str, Mapping[str, str]] = {
    "postgres": {"url": "postgresql://USER@localhost/DATABASE", "table": "NAME"},
    "sql": {"url": "mariadb://USER@localhost/DATABASE", "table": "NAME"},
    "kafka": {"topic": "NAME-out", "bootstrap_servers": "localhost:9092"},
    "hbase": {"servers": "localhost:9090", "table": "NAME", "row_key": "id", "family": "f"},
}
_DEAD_LETTERS = """\
# [sources.dead_letters]  # with on_error = "dead_letter": the sink of such records, with keys as of [[sinks]]"""
_FILTER = "amount > 0"


def example(name: str, sinks: Sequence[str], runtime: str) -> str:
    """The text of a file for the pipeline of that name on that runtime, with a sink of each of these kinds."""
    table = file_table(("kafka",), sinks)
    parts = [_INTRODUCTION, "\n".join(_lines(table, {"name": name, "runtime": runtime}))]
    kinds = {one.KIND: one for one in tables_in(table.model_fields["sinks_"].annotation)}
    (source,) = tables_in(table.model_fields["sources_"].annotation)
    parts.append("\n".join(["[[sources]]", *_lines(source, _named(_SOURCE, name)), "", _DEAD_LETTERS]))
    (step,) = tables_in(table.model_fields["steps_"].annotation)
    parts.append("\n".join(["[[steps]]  # one after the other", *_lines(step, {"filter": _FILTER})]))
    for at, kind in enumerate(sinks):
        values = _named(_SINKS[kind], name)
        if at:  # else each would be called as its table
            before = sinks[:at].count(kind)
            values["name"] = f"{name}-{kind}-{before + 1}" if before else f"{name}-{kind}"
        parts.append("\n".join(["[[sinks]]", *_lines(kinds[kind], values)]))
    parts += ["\n".join(_nested(table, key, {})) for key in ("spark", "engine", "restart")]
    return "\n\n".join(parts) + "\n"


def _nested(table: type[FileTable], key: str, values: Mapping[str, str]) -> Iterator[str]:
    field = table.model_fields[f"{key}_"]
    (found,) = tables_in(field.annotation)
    yield f"[{key}]  # {field.description}"
    yield from _lines(found, values)


def _named(values: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value.replace("NAME", name) for key, value in values.items()}


def _lines(table: type[FileTable], values: Mapping[str, str]) -> Iterator[str]:
    """Each key with what it is for; those without a value of their own as comments."""
    if table.KIND:
        yield f'kind = "{table.KIND}"'
    for field in table.model_fields.values():
        key = field.alias or ""
        if key in values:
            yield f"{key} = {json.dumps(values[key], ensure_ascii=False)}  # {field.description}"
        elif key and not _is_table(field.annotation):
            yield f"# {key} = {_default(field)}  # {_words(field.annotation)}{field.description}"


def _is_table(hint: Any) -> bool:
    """Whether only tables can stand here, which are written out by themselves."""
    parts = [part for part in typing.get_args(hint) or (hint,) if part is not types.NoneType]
    return bool(tables_in(hint)) and str not in parts


def _default(field: FieldInfo) -> str:
    match field.default:
        case bool():
            return str(field.default).lower()
        case int() | float():
            return f"{field.default}"
        case str():
            return json.dumps(field.default)
        case tuple():
            return "[]"
        case None:
            return "..."
        case _:
            return "{}"


def _words(hint: Any) -> str:
    parts = (hint, *typing.get_args(hint))
    words = [word for part in parts if typing.get_origin(part) is Literal for word in typing.get_args(part)]
    return f"{', '.join(map(str, words))}: " if words else ""
