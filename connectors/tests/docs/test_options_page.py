"""docs/options.md: every option of a pipeline's file and of every source and sink.

Names, types and defaults come from the code, the meanings from `onefold/pipeline/meanings.toml`.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from harness.renewing import assert_renewed

from onefold.clients.hbase import HBaseSettings
from onefold.clients.option_texts import option_fields
from onefold.pipeline import Engine, Restart, Spark
from onefold.pipeline.contents import PipelineFile, Reads, Step
from onefold.sinks.hbase.sink_options import HBaseSinkConfig
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.sinks.staged.table_options import SqlSinkConfig
from onefold.sources import FileSource, HBaseSource, IdsWithin, KafkaSource, OrderedIds, PostgresSource

PAGE = Path(__file__).parents[3] / "docs" / "options.md"
MEANINGS = tomllib.loads(files("onefold.pipeline").joinpath("meanings.toml").read_text())
# Each with its options in Spark's format, where it has one.
MODELS: dict[str, tuple[type, bool]] = {
    "PipelineFile": (PipelineFile, False),
    "Reads": (Reads, False),
    "Step": (Step, False),
    "Spark": (Spark, False),
    "Engine": (Engine, False),
    "Restart": (Restart, False),
    "KafkaSource": (KafkaSource, True),
    "OrderedIds": (OrderedIds, False),
    "IdsWithin": (IdsWithin, False),
    "FileSource": (FileSource, False),
    "PostgresSource": (PostgresSource, True),
    "HBaseSource": (HBaseSource, True),
    "PostgresSink": (PostgresSinkConfig, True),
    "SqlSink": (SqlSinkConfig, True),
    "KafkaSink": (KafkaSinkConfig, True),
    "HBaseSink": (HBaseSinkConfig, True),
    "HBaseSettings": (HBaseSettings, True),
}


def type_text(hint: Any) -> str:
    """A type for people: words in quotes, other types by their names."""
    match typing.get_origin(hint), typing.get_args(hint):
        case (typing.Union | types.UnionType, parts):
            several = [part for part in parts if typing.get_origin(part) is Sequence]
            if any(typing.get_args(part)[0] in parts for part in several):
                return f"{type_text(typing.get_args(several[0])[0])}, or several"
            return " or ".join(dict.fromkeys(type_text(part) for part in parts if part is not types.NoneType))
        case (typing.Literal, words):
            return ", ".join(f'`"{word}"`' for word in words)
        case (origin, [item]) if origin is Sequence:
            return f"several ({type_text(item)})"
        case (origin, _) if origin is Mapping:
            return "mapping"
        case (origin, _) if origin is Callable:
            return "function"
        case _:
            return f"`{getattr(hint, '__name__', str(hint))}`"


def default_text(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return f"`{type(made).__name__}()`" if dataclasses.is_dataclass(made) else f"`{made!r}`"
    if field.default is dataclasses.MISSING:
        return "required"
    return "" if field.default in (None, (), "") else f"`{field.default!r}`".replace("'", '"')


def options(model: type) -> list[dataclasses.Field[Any]]:
    """Those that a file, or an option of Spark's, may have."""
    return [field for field in dataclasses.fields(model) if field.init and field.metadata.get("toml", True)]


def table(section: str) -> list[str]:
    model, is_format = MODELS[section]
    hints = typing.get_type_hints(model)
    in_spark = {field.name: name for name, field in option_fields(model).items()} if is_format else {}
    columns = ["option", *(["in Spark"] if is_format else []), "type", "default", "meaning"]
    lines = ["", f"## {section}", "", f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for field in sorted(options(model), key=lambda option: [*MEANINGS[section]].index(option.name)):
        name = f"`{in_spark[field.name]}`" if field.name in in_spark else ""
        cells = [f"`{field.name}`", *([name] if is_format else []), type_text(hints[field.name])]
        cells += [default_text(field), MEANINGS[section][field.name]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def test_each_option_has_a_meaning_and_each_meaning_its_option() -> None:
    assert {name: {*said} for name, said in MEANINGS.items()} == {
        name: {field.name for field in options(model)} for name, (model, _) in MODELS.items()
    }


@pytest.mark.docs
def test_the_page_has_every_option_with_its_type_default_and_meaning() -> None:
    assert_renewed(PAGE, "test_options_page.py", "\n".join(line for name in MODELS for line in table(name)))
