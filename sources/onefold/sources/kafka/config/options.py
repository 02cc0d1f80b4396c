"""How a source's formats are written as a data source's options, and read back from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onefold.core.errors import ConfigError

if TYPE_CHECKING:
    from onefold.sources.kafka.source import KafkaSource

__all__ = ["FORMAT_OPTIONS", "format_options", "format_settings"]

# Each option with the setting it stands for.
_TEXTS = {
    "schema": "schema",
    "avroSchema": "avro_schema",
    "avroWrittenAs": "avro_written_as",
    "onError": "on_error",
    "csvDelimiter": "csv_delimiter",
}
_NUMBERS = {"badRecordsMax": "bad_records_max", "recordBytesMax": "record_bytes_max"}
FORMAT_OPTIONS = (*_TEXTS, *_NUMBERS, "columns")


def format_options(source: KafkaSource) -> dict[str, str]:
    options = {option: getattr(source, name) for option, name in _TEXTS.items()}
    options["columns"] = ",".join(source.columns) or None
    options |= {option: str(getattr(source, name)) for option, name in _NUMBERS.items()}
    for name, value in (source.schema_registry or {}).items():
        options[f"schema.registry.{name}"] = value
    return {option: value for option, value in options.items() if value is not None}


def format_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """The settings that are given among these options, whose names have their proper case."""
    given: dict[str, Any] = {name: options[option] for option, name in _TEXTS.items() if option in options}
    if "columns" in options:
        given["columns"] = [name.strip().lower() for name in options["columns"].split(",") if name.strip()]
    for option, name in _NUMBERS.items():
        if option in options:
            if not options[option].strip().isdigit():
                raise ConfigError(f"{option} is a whole number from 0, not {options[option]!r}")
            given[name] = int(options[option])
    return given
