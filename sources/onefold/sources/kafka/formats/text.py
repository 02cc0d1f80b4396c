"""Values as texts: one column, `value string`, null where the value is null."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.sources.formats.values import Unparsable

__all__ = ["TEXT_DDL", "TextParser", "check"]

TEXT_DDL = "value string"


def check(schema: pa.Schema) -> None:
    """Raise `ConfigError` unless the schema is the one column."""
    if len(schema) > 1 or any(field.name != "value" or not pa.types.is_string(field.type) for field in schema):
        raise ConfigError("schema-type", f"format=string has one column, {TEXT_DDL}; not {', '.join(schema.names)}")


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
