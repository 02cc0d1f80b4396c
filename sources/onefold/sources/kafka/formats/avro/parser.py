"""Parses Avro values as Arrow: values of one schema, or values that begin with their schema's id in a registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import ConfigError
from onefold.core.values.ddl import is_same
from onefold.sources.formats.values import Unparsable
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.avro.decoding import Decoder, decoder_of
from onefold.sources.kafka.formats.avro.schema_registry import HEADER, SCHEMAS_MAX, Registry


def check(schema: pa.Schema, reader: AvroSchema) -> None:
    """Raise `ConfigError` for a column that the schema which records are read as does not have, or not so."""
    for field in schema:
        number = reader.arrow.get_field_index(field.name)
        if number < 0:
            raise ConfigError(
                "no-such-column",
                f"format=avro: avro_schema has no field {field.name!r}: {', '.join(reader.arrow.names)}",
            )
        if not is_same(field.type, reader.arrow.field(number).type):
            wanted = reader.arrow.field(number).type
            raise ConfigError(
                "schema-type", f"format=avro: the field {field.name!r} is {wanted} by avro_schema, not {field.type}"
            )


class AvroParser:
    """One row for each value: its record, read as `reader`'s, in the columns of `schema`.

    All were `written` as that schema, with nothing around; or each begins with the id of its schema in a registry
    (Confluent's wire format).
    """

    def __init__(self, schema: pa.Schema, reader: AvroSchema, written: AvroSchema | Registry) -> None:
        self._schema = schema
        self._reader = reader
        self._written = written
        self._decoders: dict[bytes, Decoder | Unparsable] = {}

    def parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        size = 0 if isinstance(self._written, AvroSchema) else HEADER
        if None in values:
            reason = "the value is null (a tombstone), and format=avro needs a record; format=raw reads it"
            raise Unparsable(list(values).index(None), reason)
        there = [value for value in values if value is not None]
        by_head: dict[bytes, list[int]] = {}
        for index, value in enumerate(there):
            by_head.setdefault(value[:size], []).append(index)
        decoders = [(at, self._decoder(head, at[0])) for head, at in by_head.items()]  # all, before any decodes
        parts: list[pa.RecordBatch] = []
        order: list[int] = []
        for at, decode in decoders:
            try:
                parts.append(decode([there[index][size:] for index in at]))
            except Unparsable as error:
                raise Unparsable(None if error.index is None else at[error.index], error.reason) from None
            order += at
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts).take(pc.sort_indices(pa.array(order)))

    def _writer(self, head: bytes) -> Any:
        """The schema of the values that begin so, in one piece. Raises `Unparsable`."""
        if isinstance(self._written, AvroSchema):
            return self._written.json
        if len(head) < HEADER or head[0] != 0:
            raise Unparsable(None, "the value does not begin with a zero and a schema's id")
        return self._written.writer(int.from_bytes(head[1:], "big"))

    def _decoder(self, head: bytes, index: int) -> Decoder:
        """What decodes the values of that head. Raises `Unparsable` at `index` where nothing does, at once if it is
        known already: many values may have the head, and each is asked about alone."""
        decoder = self._decoders.get(head)
        if decoder is None:
            try:
                decoder = decoder_of(self._writer(head), self._reader, self._schema)
            except Unparsable as error:
                if not error.is_permanent:
                    raise Unparsable(index, error.reason, is_permanent=False) from None
                decoder = error
            if len(self._decoders) >= SCHEMAS_MAX:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[head] = decoder
        if isinstance(decoder, Unparsable):
            raise Unparsable(index, decoder.reason)
        return decoder
