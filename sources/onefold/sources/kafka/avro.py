"""Avro values parsed as Arrow: bare ones, of one schema, and those that a schema registry's id is in front of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa

from onefold.core.errors import ConfigError, OnefoldError
from onefold.sources.kafka.avro_types import AvroSchema, array_of
from onefold.sources.kafka.raw import is_same
from onefold.sources.kafka.registry import HEADER, Registry
from onefold.sources.kafka.sifting import Unparsable

__all__ = ["AvroParser", "check", "framed", "plain"]

Framing = Callable[[bytes], tuple[Any, int]]  # a value's schema as it was written, and where its record begins


def check(schema: pa.Schema, reader: AvroSchema) -> None:
    """Raise `ConfigError` for a column that the schema which records are read as does not have, or not so."""
    for field in schema:
        number = reader.arrow.get_field_index(field.name)
        if number < 0:
            raise ConfigError(f"format=avro: avro_schema has no field {field.name!r}: {', '.join(reader.arrow.names)}")
        if not is_same(field.type, reader.arrow.field(number).type):
            wanted = reader.arrow.field(number).type
            raise ConfigError(f"format=avro: the field {field.name!r} is {wanted} by avro_schema, not {field.type}")


def plain(writer: AvroSchema) -> Framing:
    """Every value is one record of that schema, with nothing around it."""
    return lambda _: (writer.decoded_as, 0)


def framed(registry: Registry) -> Framing:
    """Every value says by an id which of the registry's schemas it was written with (Confluent's wire format)."""

    def take(value: bytes) -> tuple[Any, int]:
        if len(value) < HEADER or value[0] != 0:
            raise Unparsable(None, "the value does not begin with a zero and a schema's id")
        return registry.writer(int.from_bytes(value[1:HEADER], "big")), HEADER

    return take


class AvroParser:
    """One row for each value: its record, read as `reader`'s, in the columns of `schema`."""

    def __init__(self, schema: pa.Schema, reader: AvroSchema, framing: Framing) -> None:
        self._schema = schema
        self._reader = reader
        self._framing = framing
        parts = dict(zip(reader.node.names, reader.node.inside, strict=True))
        self._readers: dict[int, Any] = {}
        self._columns = [(field, parts[field.name]) for field in schema]

    def parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        records = [self._record(index, value) for index, value in enumerate(values)]
        try:
            arrays = [
                array_of(node, [record[field.name] for record in records]).cast(field.type)
                for field, node in self._columns
            ]
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise Unparsable(None, str(error)) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def explain(self, value: bytes | None) -> Unparsable:
        try:
            self.parse([value])
        except Unparsable as error:
            return error
        return Unparsable(0, "the value is no record of its schema")

    def _resolved_to(self, writer: Any) -> Any:
        """The schema to read as, None where it is the writer's own, which is faster. Schemas are few, and live on."""
        if id(writer) not in self._readers:
            reader = self._reader.decoded_as
            self._readers[id(writer)] = None if writer == reader else reader
        return self._readers[id(writer)]

    def _record(self, index: int, value: bytes | None) -> dict[str, Any]:
        if value is None:
            raise Unparsable(
                index, "the value is null (a tombstone), and format=avro needs a record; format=raw reads it"
            )
        try:
            writer, begin = self._framing(value)
            data = BytesIO(value)
            data.seek(begin)
            record = fastavro.schemaless_reader(data, writer, self._resolved_to(writer))
        except OnefoldError:
            raise
        except Unparsable as error:
            raise Unparsable(index, error.reason, error.settled) from None
        except Exception as error:  # bytes that are no record may make the decoder raise anything
            raise Unparsable(index, f"not a record of its Avro schema: {error!r}") from None
        if (left := len(value) - data.tell()) > 0:
            raise Unparsable(index, f"not a record of its Avro schema: {left} bytes are left over behind it")
        assert isinstance(record, dict), record
        return record
