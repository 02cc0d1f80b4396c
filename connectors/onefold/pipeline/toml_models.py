"""The tables of a pipeline's TOML file: pydantic's models, made of the dataclasses that the constructors take.

There is nothing to keep in step: an option that a dataclass has is a key of its table, with its type and default.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from onefold.core import ConfigError
from onefold.core.extras import naming_extras
from onefold.pipeline.contents import PipelineFile, Reads, Step
from onefold.pipeline.references import imported

# Of each kind the options' dataclass, and what is made of them.
SOURCES = {
    "kafka": ("onefold.sources.kafka.source_options:KafkaSourceConfig", "onefold.sources:KafkaSource"),
    "files": ("onefold.sources.files.source_options:FileSourceConfig", "onefold.sources:FileSource"),
    "postgres": ("onefold.sources.postgres.source_options:PostgresSourceConfig", "onefold.sources:PostgresSource"),
    "hbase": ("onefold.sources.hbase.source:HBaseSource", "onefold.sources:HBaseSource"),
}
SINKS = {
    "postgres": ("onefold.sinks.postgres.sink_options:PostgresSinkConfig", "onefold.sinks:PostgresSink"),
    "sql": ("onefold.sinks.staged.table_options:SqlSinkConfig", "onefold.sinks:SqlSink"),
    "kafka": ("onefold.sinks.kafka.sink_options:KafkaSinkConfig", "onefold.sinks:KafkaSink"),
    "hbase": ("onefold.sinks.hbase.sink_options:HBaseSinkConfig", "onefold.sinks:HBaseSink"),
}
_PASSWORD = Field(alias="password_file", description="the file with the password of the URL's user")  # secrets.py
_LINK = re.compile(r" ?\(\[[^]]*\]\([^)]*\)\)|`")
_CONFIG = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True, arbitrary_types_allowed=True)


class FileTable(BaseModel):
    """One table of the file. `MAKES` is called with the keys that it has; `FUNCTIONS` may name functions."""

    model_config = _CONFIG
    MAKES: ClassVar[Callable[..., Any]]
    FUNCTIONS: ClassVar[frozenset[str]]
    KIND: ClassVar[str] = ""
    BESIDE: ClassVar[frozenset[str]] = frozenset()  # fields that are none of what it makes

    def make(self, within: Path | None, /, place: str = "", **more: Any) -> Any:
        """What the table describes. Raises the ConfigError of its constructor, with `place`, the table's own name.
        Functions are of files `within`; where that is None, none is named: what a store says runs no code."""
        given = self._given(self.model_fields_set - {"kind"} - self.BESIDE, within, place)
        try:
            return type(self).MAKES(**given, **more)
        except ConfigError as error:
            raise (error.reworded(f"{place}: {error.message}") if place else error) from error.__cause__

    def _given(self, fields: Iterable[str], within: Path | None, place: str) -> dict[str, Any]:
        given = {}
        for field in fields:
            name = field.removesuffix("_")
            value, at = getattr(self, field), f"{place}.{name}" if place else name
            given[name] = self._function(name, value, within, at) or _made(value, within, at)
        return given

    @classmethod
    def known(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]

    def _function(self, name: str, value: object, directory: Path | None, place: str) -> object:
        if name not in self.FUNCTIONS or not isinstance(value, str) or ":" not in value:
            return None
        if directory is None:
            raise ConfigError("reference-invalid", f"{place}: a function is named where none can be")
        try:
            return imported(value, directory)
        except ConfigError as error:
            raise error.reworded(f"{place}: {error.message}") from error.__cause__


class SourceTable(FileTable):
    """A source, with what its flow says of it."""

    def make(self, within: Path | None, /, place: str = "", **more: Any) -> Reads:
        beside = self._given(self.model_fields_set & self.BESIDE, within, place)
        return Reads(super().make(within, place, **more), **beside)


def file_table(sources: Sequence[str] = tuple(SOURCES), sinks: Sequence[str] = tuple(SINKS)) -> type[FileTable]:
    """The table of a whole file whose sources and sinks are of these kinds: a kind's packages need not be installed
    where it isn't used."""
    sink = _one_of([_kind(*SINKS[kind], kind) for kind in dict.fromkeys(sinks)])
    source = _one_of([_source(kind, sink) for kind in dict.fromkeys(sources)])
    instead = {"sources": list[source], "steps": list[_nested(Step)], "sinks": list[sink]}  # type: ignore[valid-type, misc]  # made at run time
    return _table_of(PipelineFile, PipelineFile, instead)


def _source(kind: str, sink: Any) -> type[FileTable]:
    said = meanings()["Reads"]
    beside: dict[str, Any] = {
        f"{name}_": (Annotated[hint, Field(alias=name, description=said[name])], None)
        for name, hint in (("uid", str | None), ("dead_letters", sink | None))
    }
    of = _kind(*SOURCES[kind], kind, SourceTable)
    made = create_model(of.__name__, __base__=of, __doc__=of.__doc__, **beside)
    made.BESIDE = frozenset(beside)
    return made


@functools.cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """What each option is for, by class and option, as a plain text."""
    found = tomllib.loads((Path(__file__).parent / "meanings.toml").read_text())
    return {name: {option: _LINK.sub("", says) for option, says in of.items()} for name, of in found.items()}


def _one_of(tables: Sequence[type[FileTable]]) -> Any:
    if len(tables) < 2:
        return tables[0] if tables else FileTable
    return Annotated[typing.Union[tuple(tables)], Field(discriminator="kind")]  # noqa: UP007 - a tuple


@functools.cache
def _kind(options: str, makes: str, kind: str, base: type[FileTable] = FileTable) -> type[FileTable]:
    with naming_extras():
        model, made = _named(options), _named(makes)
    return _table_of(model, made, kind=kind, base=base)


def _table_of(
    model: type,
    makes: Callable[..., Any],
    instead: Mapping[str, Any] = types.MappingProxyType({}),
    kind: str = "",
    base: type[FileTable] = FileTable,
) -> type[FileTable]:
    hints, said = typing.get_type_hints(model), meanings().get(getattr(makes, "__name__", ""), {})
    fields: dict[str, Any] = {"kind": (Literal[kind], ...)} if kind else {}
    for field in dataclasses.fields(model):
        if field.init and field.metadata.get("toml", True):
            hint = instead.get(field.name) or _hint(hints[field.name])
            # With an alias, as an option may have the name of a method of pydantic's models: `schema`.
            says = said.get(field.name)
            fields[f"{field.name}_"] = (Annotated[hint, Field(alias=field.name, description=says)], _default(field))
            if field.name == "url":
                fields["password_file_"] = (Annotated[str | None, _PASSWORD], None)
    name = getattr(makes, "__name__", model.__name__)
    made = create_model(name, __base__=base, __doc__=_summary(makes), **fields)
    made.MAKES, made.KIND = makes, kind
    made.FUNCTIONS = frozenset(name for name, hint in hints.items() if _takes_function(hint))
    return made


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return ... if field.default_factory is dataclasses.MISSING else Field(default_factory=lambda: None)


def _hint(hint: Any) -> Any:
    """The annotation as TOML can have it: other dataclasses are tables, functions are given by their names."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _nested(hint)
    match typing.get_origin(hint), typing.get_args(hint):
        case (typing.Union | types.UnionType, parts):
            kept = [_hint(part) for part in parts if _is_of_toml(part)]
            if _takes_function(hint) and str not in kept:
                kept.append(str)
            return typing.Union[tuple(kept)]  # noqa: UP007 - a tuple
        case (origin, (key, _)) if origin is Mapping and key is str and hint == Mapping[str, str]:
            return dict[str, Setting]
        case _:
            return hint


def tables_in(hint: Any) -> list[type[FileTable]]:
    """The tables that a value of this annotation may be, or contain."""
    if isinstance(hint, type) and issubclass(hint, FileTable):
        return [hint]
    return [found for part in typing.get_args(hint) for found in tables_in(part)]


def _takes_function(hint: Any) -> bool:
    return any(typing.get_origin(part) is collections.abc.Callable for part in typing.get_args(hint))


def _is_of_toml(hint: Any) -> bool:
    """Not functions, and not what is put together of further objects: for these there are other options."""
    if dataclasses.is_dataclass(hint):
        return not any(dataclasses.is_dataclass(part) for part in typing.get_type_hints(hint).values())
    return typing.get_origin(hint) is not collections.abc.Callable


@functools.cache
def _nested(model: type) -> type[FileTable]:
    return _table_of(model, model)


def _text(value: object) -> object:
    """Settings of other systems are texts; a file may have them as numbers and booleans."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Setting = Annotated[str, BeforeValidator(_text)]


def _made(value: object, directory: Path | None, place: str) -> object:
    match value:
        case FileTable():
            return value.make(directory, place)
        case list():
            return [_made(one, directory, f"{place}[{at}]") for at, one in enumerate(value)]
        case _:
            return value


def _named(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _summary(makes: object) -> str:
    return (makes.__doc__ or "").strip().partition("\n")[0]
