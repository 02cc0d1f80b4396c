"""Reads a pipeline: from its TOML file, or as the object of that name in Python."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from onefold.clients.options import in_one_form
from onefold.core import ConfigError
from onefold.core.values.names import near
from onefold.pipeline.contents import PipelineFile
from onefold.pipeline.pipeline import Pipeline, check_place
from onefold.pipeline.references import check_nobody_else_writes, imported
from onefold.pipeline.remembered import UNREADABLE, RememberedFlow, endpoints, settings_of
from onefold.pipeline.secrets import filled, without_secrets
from onefold.pipeline.toml_models import SINKS, SOURCES, FileTable, file_table, tables_in
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import ENDPOINTS, pinned

_WORDS = {  # of pydantic's, where they are not what somebody calls it who writes TOML
    "string_type": "a text is wanted, in quotes",
    "model_type": "a table is wanted",
    "model_attributes_type": "a table is wanted",
    "list_type": "a list is wanted: [[sinks]] begins one sink",
    "bool_type": "true or false is wanted",
    "int_type": "a whole number is wanted",
    "float_type": "a number is wanted",
}
_TYPES = ("bool", "date", "datetime", "float", "int", "str")


def read(named: str, *, is_stopped: bool = False) -> Pipeline:
    """The pipeline in `orders.toml`, or that `jobs/orders.py:pipeline` or `package.module:pipeline` names.

    Connects to no server, but to one that a source's schema is left to. Raises ConfigError, with the file and the key,
    for whatever is wrong in it. With `is_stopped` the flow that a file names need not be imported: where the store
    remembers its sources and sinks, they are all that the pipeline has.
    """
    found = _of_file(Path(named), is_stopped) if named.endswith(".toml") else imported(named)
    if not isinstance(found, Pipeline):
        raise ConfigError(
            "option-value", f"{named} is {type(found).__name__}, and a pipeline is a Pipeline (onefold.pipeline)"
        )
    in_one_form(found, named=named)
    return found


def _of_file(path: Path, is_stopped: bool) -> Pipeline:
    try:
        return _pipeline(
            _parsed(path), path.absolute().parent, is_stopped
        )  # not a link's target: a ConfigMap's changes
    except ConfigError as error:
        raise error.reworded(f"{path}: {error.message}") from error.__cause__


def _parsed(path: Path) -> dict[str, Any]:
    """The file's values as they stand there, with secrets that are only named."""
    check_nobody_else_writes(path)
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # editors of Windows begin a file with a BOM
    except OSError as error:
        raise ConfigError("file-unreadable", f"the file cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError("file-invalid", f"this is not TOML: {reason}") from None


def definition(named: str) -> tuple[str, ...]:
    """The values of a pipeline's file, one a line, as TOML has them. Secrets that are named stay names, and are not
    looked up. Of a pipeline that is defined in Python there is none, nor of a file that is gone meanwhile."""
    if not named.endswith(".toml"):
        return ()
    try:
        values = _parsed(Path(named))
    except ConfigError:
        return ()
    return tuple(without_secrets(values))


def _pipeline(raw: dict[str, Any], directory: Path, is_stopped: bool) -> Pipeline:
    sources, sinks = _kinds(_tables(raw, "sources"), SOURCES), _kinds(_sinks(raw), SINKS)
    values = filled(raw, directory)
    table = file_table(sources, sinks)
    try:
        found = table.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, table) from None
    for place, sink in _sinks(values):
        if sink["kind"] == "sql":
            check_place(f"{place}.url", sink["url"])
    made: PipelineFile = found.make(directory)
    if made.flow is None:
        return made.pipeline(directory)
    settings = settings_of(raw, values)
    if is_stopped and made.name and made.store and (text := _remembered(made.name, made.store)):
        with suppress(*UNREADABLE):  # of another version, or of other settings
            return made.pipeline(directory, RememberedFlow(made.name, text, settings))
    pipeline = made.pipeline(directory)
    pipeline.flow.endpoints = endpoints(pipeline.flow, settings)
    return pipeline


def _remembered(name: str, url: str) -> str | None:
    check_place("store", url)
    with closing(CheckpointStore(url, lock_timeout_s=10)) as store:
        return None if store.look() is None else pinned(store, name, ENDPOINTS)


def _tables(values: dict[str, Any], key: str) -> list[tuple[str, Any]]:
    """The tables of a list, by their places."""
    found = values.get(key)
    return [(f"{key}[{at}]", table) for at, table in enumerate(found)] if isinstance(found, list) else []


def _sinks(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tables of sinks, those of dead letters too, by their places."""
    letters = [
        (f"{place}.dead_letters", table["dead_letters"])
        for place, table in _tables(values, "sources")
        if isinstance(table, dict) and "dead_letters" in table
    ]
    return [*_tables(values, "sinks"), *letters]


def _kinds(tables: Sequence[tuple[str, Any]], known: Collection[str]) -> list[str]:
    found = []
    for place, table in tables:
        kind = table.get("kind") if isinstance(table, dict) else None
        if isinstance(kind, str) and kind in known:
            found.append(kind)
        elif isinstance(table, dict):
            says = f"kind is missing: {', '.join(known)}" if kind is None else f"there is no kind {kind!r}"
            hint = "" if kind is None else near(str(kind), known) or f"; known are {', '.join(known)}"
            raise ConfigError("option-value", f"{place}: {says}{hint}")
    return found


def _refusal(error: ValidationError, table: type[FileTable]) -> ConfigError:
    """The first thing that is wrong, with its place as the file has it. No value is quoted: it may be a secret."""
    errors = _of_what_is_meant(error.errors(include_url=False, include_context=False, include_input=False), table)
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    if unknown:
        # Where a value may be one of several tables, the one is meant that fits best.
        several = Counter(one["loc"][:-1] for one in unknown)
        found = min(unknown, key=lambda one: several[one["loc"][:-1]])
        at, keys = _place(found["loc"][:-1], table)
        name = str(found["loc"][-1])
        hint = near(name, keys) or f"; known are {', '.join(keys)}"
        return ConfigError("option-unknown", f"{at or 'the file'} has no key {name!r}{hint}")
    found = max(errors, key=lambda one: len(one["loc"])) if len({one["loc"][0] for one in errors}) == 1 else errors[0]
    place, _ = _place(found["loc"], table)
    if found["type"] == "missing":
        return ConfigError("option-missing", f"{place} is missing")
    if found["type"] == "literal_error":
        return ConfigError(
            "option-value", f"{place}: {found['msg'].replace('Input should be', 'one of these is wanted:')}"
        )
    return ConfigError("option-value", f"{place}: {_WORDS.get(found['type'], found['msg'])}")


def _of_what_is_meant(errors: list[ErrorDetails], table: type[FileTable]) -> list[ErrorDetails]:
    """pydantic tells of each table that a value may be. One with unknown keys is not meant where another has none."""
    wrong = {one["loc"][:-1] for one in errors if one["type"] == "extra_forbidden"}
    others = {one["loc"][:at] for one in errors for at in range(1, len(one["loc"]))} - wrong
    known = {loc[:-1] for loc in others if not _is_a_type(loc[-1]) and _is_no_key(loc, table)}
    not_meant = {loc for loc in wrong if _is_no_key(loc, table) and loc[:-1] in known}
    return [one for one in errors if not any(one["loc"][: len(loc)] == loc for loc in not_meant)]


def _is_no_key(where: Sequence[str | int], table: type[FileTable]) -> bool:
    return bool(where) and _place(where, table)[0] == _place(where[:-1], table)[0]


def _is_a_type(part: str | int) -> bool:
    """Whether it is pydantic's name of a type that is no table: `str`, `dict[str,int]`."""
    return isinstance(part, str) and (part in _TYPES or "[" in part)


def _place(where: Sequence[str | int], table: type[FileTable]) -> tuple[str, list[str]]:
    """The keys that lead there, and those that the table there may have. pydantic also names the kinds of tables."""
    place, tables = "", [table]
    for part in where:
        if isinstance(part, int):
            place += f"[{part}]"
            continue
        if _is_a_type(part):
            continue
        fields = [field for one in tables for field in one.model_fields.values() if field.alias == part]
        if fields or not tables:
            place += f".{part}" if place else part
            tables = [one for field in fields for one in tables_in(field.annotation)]
        else:
            tables = [one for one in tables if part in (one.__name__, one.KIND)] or tables
    return place, list(dict.fromkeys(key for one in tables for key in one.known()))
