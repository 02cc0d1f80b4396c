"""Of each format: which settings go with it, which columns it gives, and which parser reads it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.extras import to_install
from onefold.core.values.ddl import column_names, schema_of
from onefold.core.values.names import near
from onefold.sources.formats import csv, json
from onefold.sources.formats.values import Parser, Unparsable
from onefold.sources.kafka.formats import record_columns
from onefold.sources.kafka.source_options import FORMATS, KafkaSourceConfig

INFER = "infer"
_TEXT_DDL = "value string"


def check_format(source: KafkaSourceConfig) -> None:
    """Raise `ConfigError` for settings that do not go together. Asks no server."""
    chosen = source.format
    if chosen not in FORMATS:
        raise ConfigError(
            "option-value", f"format is one of {', '.join(FORMATS)}, not {chosen!r}{near(chosen, FORMATS)}"
        )
    if chosen in ("raw", "string", "avro") and source.schema is not None:
        own = {"raw": record_columns.RAW_DDL, "string": _TEXT_DDL, "avro": "those of avro_schema"}[chosen]
        raise ConfigError(
            "options-conflict",
            f"a schema goes with format='json' or 'csv'; format={chosen!r} has its own columns: {own}",
        )
    if chosen == "raw" and source.columns:
        raise ConfigError(
            "options-conflict",
            "columns go with the other formats; format='raw' has topic, partition and offset, key,"
            " headers and timestamp by itself",
        )
    if chosen == "csv" and source.schema == INFER:
        raise ConfigError("schema-missing", "format=csv has no names or types to infer a schema from: give one")
    if chosen != "csv" and source.csv_delimiter != ",":
        raise ConfigError("options-conflict", "csv_delimiter goes with format='csv'")
    csv.check_delimiter(source.csv_delimiter)
    _check_avro(source)
    record_columns.check_names(source.columns, _parsed_names(source))


def record_ddl(source: KafkaSourceConfig) -> str:
    """The columns of a source's records, as a Spark DDL text."""
    match source.format:
        case "raw":
            return record_columns.RAW_DDL
        case "string":
            parsed = _TEXT_DDL
        case "avro":
            from onefold.core.values.ddl import ddl_of
            from onefold.sources.kafka.formats.avro.avro_types import AvroSchema

            assert source.avro_schema is not None, "a pipeline or a data source has found it"
            parsed = ddl_of(AvroSchema(source.avro_schema).arrow)
        case _ if source.schema is None:
            raise ConfigError(
                "schema-missing",
                f"format={source.format} needs a schema, such as schema='id long, at timestamp'",
            )
        case _:
            parsed = source.schema
    return record_columns.columns_ddl(parsed, source.columns)


def record_schema(source: KafkaSourceConfig) -> pa.Schema:
    """The columns of a source's records, in Arrow. Raises ConfigError if its records can't be read as these."""
    found = schema_of(record_ddl(source))
    check_schema(source, found)
    return found


def check_schema(source: KafkaSourceConfig, schema: pa.Schema) -> None:
    """Raise `ConfigError` if the source's records can't be read as this schema."""
    record_columns.check_types(schema, source.columns)
    parsed = record_columns.parsed_part(schema, source.columns)
    match source.format:
        case "raw":
            record_columns.check_raw(parsed)
        case "string":
            _check_text(parsed)
        case "json":
            json.check(parsed)
        case "csv":
            csv.check(parsed)
        case _:
            from onefold.sources.kafka.formats.avro import parser
            from onefold.sources.kafka.formats.avro.avro_types import AvroSchema

            assert source.avro_schema is not None, "a pipeline or a data source has found it"
            parser.check(parsed, AvroSchema(source.avro_schema))


def parser_of(source: KafkaSourceConfig, parsed: pa.Schema) -> Parser:
    """What turns the values of a source's records into these columns."""
    match source.format:
        case "string":
            return TextParser(parsed)
        case "json":
            return json.JsonParser(parsed)
        case "csv":
            return csv.CsvParser(parsed, source.csv_delimiter)
    assert source.format == "avro" and source.avro_schema is not None, source
    from onefold.sources.kafka.formats.avro import parser
    from onefold.sources.kafka.formats.avro.avro_types import AvroSchema

    reader = AvroSchema(source.avro_schema)
    if source.registry is not None:
        from onefold.sources.kafka.formats.avro.schema_registry import registry

        return parser.AvroParser(parsed, reader, registry(source.registry, source.timeout_s))
    writer = reader if source.avro_written_as is None else AvroSchema(source.avro_written_as)
    return parser.AvroParser(parsed, reader, writer)


def _parsed_names(source: KafkaSourceConfig) -> list[str]:
    """As far as they are known before any server is asked."""
    if source.format == "avro":
        from onefold.sources.kafka.formats.avro.avro_types import AvroSchema

        return AvroSchema(source.avro_schema).arrow.names if source.avro_schema is not None else []
    return column_names(source.schema) if source.schema not in (None, INFER) else []


def _check_avro(source: KafkaSourceConfig) -> None:
    given = {
        "avro_schema": source.avro_schema,
        "avro_written_as": source.avro_written_as,
        "schema_registry": source.schema_registry,
    }
    if source.format != "avro":
        if named := [name for name, value in given.items() if value is not None]:
            raise ConfigError("options-conflict", f"{named[0]} goes with format='avro'")
        return
    for module in ("fastavro", "pyruhvro", *(["authlib"] if source.registry is not None else [])):
        if find_spec(module) is None:
            raise ConfigError(
                "package-missing", f"format='avro' needs {module}, which is not installed: {to_install('avro')}"
            )
    if source.registry is not None and not source.registry.get("url"):
        raise ConfigError(
            "option-value", "schema_registry is the registry's URL, or its settings with 'url' among them"
        )
    if source.registry is not None and source.avro_written_as is not None:
        raise ConfigError(
            "options-conflict",
            "avro_written_as is for records without a registry: there, each says what it was written as",
        )
    if source.avro_schema is None and source.schema_registry is None:
        raise ConfigError(
            "option-missing",
            "format='avro' needs avro_schema, the JSON text of what records are read as, or schema_registry",
        )
    if source.avro_schema is None and len(source.topics) != 1:
        raise ConfigError(
            "option-missing",
            "several topics have several subjects in the registry: give avro_schema, what all are read as",
        )
    from onefold.sources.kafka.formats.avro.avro_types import AvroSchema

    for text_ in (source.avro_schema, source.avro_written_as):
        if text_ is not None:
            AvroSchema(text_)


def _check_text(schema: pa.Schema) -> None:
    """Raise `ConfigError` unless the schema is the one column."""
    if len(schema) > 1 or any(field.name != "value" or not pa.types.is_string(field.type) for field in schema):
        raise ConfigError("schema-type", f"format=string has one column, {_TEXT_DDL}; not {', '.join(schema.names)}")


class TextParser:
    """Texts are UTF-8, or refused."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        texts = pa.array(values, pa.binary())
        try:
            return pa.RecordBatch.from_arrays([texts.cast(pa.string())] * len(self._schema), schema=self._schema)
        except pa.ArrowInvalid:
            raise _first_bad(values) from None


def _first_bad(values: Sequence[bytes | None]) -> Unparsable:
    for index, value in enumerate(values):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            return Unparsable(index, f"the value is not UTF-8: {error.reason} at byte {error.start}")
    return Unparsable(None, "the value is not UTF-8")
