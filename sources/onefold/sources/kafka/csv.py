"""Values that are one line of CSV each (RFC 4180, without a header), many at a time, each exactly once or not at all.

Values go to pyarrow's CSV reader joined by newlines, and none may hold a line break. So a quote that stays open can
only swallow the lines behind it: then there are fewer rows than values, or, where it is in the last one, a text with a
line break. As many rows as values, and no such text, mean one row for each value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from onefold.core.errors import ConfigError
from onefold.sources.kafka.overflow import has_infinity, too_large
from onefold.sources.kafka.sifting import Unparsable

__all__ = ["CsvParser", "check", "check_delimiter"]


_MARK = b"\xef\xbb\xbf"  # the reader drops one ahead of all lines: it gets its own, and each value keeps what it has


def check(schema: pa.Schema) -> None:
    """Raise `ConfigError` for a column that can't be parsed exactly."""
    if not len(schema):
        raise ConfigError("format=csv needs a schema with at least one column: schema='id long, ...'")
    for field in schema:
        if not _is_supported(field.type):
            raise ConfigError(
                f"format=csv cannot parse the column {field.name!r}: {field.type} is not supported there. Read it as a"
                " string"
            )


def check_delimiter(delimiter: str) -> None:
    if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ConfigError(f"csv_delimiter is one ASCII character, no quote and no line break, not {delimiter!r}")


class CsvParser:
    """One row for each value, by the order of its fields: a value with more or fewer of them is refused.

    An empty field is null, an empty one in quotes an empty string. A timestamp has its offset or a Z, a timestamp_ntz
    none. Booleans are true and false.
    """

    def __init__(self, schema: pa.Schema, delimiter: str) -> None:
        self._schema = schema
        self._parse = pcsv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False, newlines_in_values=False)
        self._convert = pcsv.ConvertOptions(
            column_types=schema,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
            true_values=["true"],
            false_values=["false"],
        )

    def parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        joined = _join(values)
        options = pcsv.ReadOptions(use_threads=False, block_size=len(joined) + 1, column_names=self._schema.names)
        try:
            table = pcsv.read_csv(pa.BufferReader(joined), options, self._parse, self._convert)
        except pa.ArrowInvalid as error:
            row = re.search(r"Row #(\d+): ", str(error))
            raise Unparsable(int(row[1]) - 1 if row else None, _said(error)) from None
        if table.num_rows != len(values):
            raise Unparsable(None, "a quote stays open")
        arrays = [column.combine_chunks() for column in table.columns]
        for array, field in zip(arrays, self._schema, strict=True):
            if b'"' in joined and pa.types.is_string(field.type) and pc.any(pc.match_substring(array, "\n")).as_py():
                raise Unparsable(None, f"field {field.name!r}: a quote stays open")
            if not field.nullable and array.null_count:
                raise Unparsable(None, f"the field {field.name!r} is empty, and the schema says NOT NULL")
            if has_infinity(array):
                self._refuse_overflow(joined, array, field)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _refuse_overflow(self, joined: bytes, array: pa.Array, field: pa.Field) -> None:
        """Raise `Unparsable` for a number such as 1e400; an infinity that is written as one is what it says."""
        options = pcsv.ReadOptions(use_threads=False, block_size=len(joined) + 1, column_names=self._schema.names)
        texts = pcsv.ConvertOptions(include_columns=[field.name], column_types={field.name: pa.string()})
        written = pcsv.read_csv(pa.BufferReader(joined), options, self._parse, texts).column(0).combine_chunks()
        is_number = pc.match_substring_regex(written, "[0-9]")
        large = pc.and_(pc.is_inf(array), is_number)
        if large.true_count:
            raise Unparsable(pc.index(large, True).as_py(), too_large(field))

    def explain(self, value: bytes | None) -> Unparsable:
        try:
            self.parse([value])
        except Unparsable as error:
            return error
        return Unparsable(0, "the value is not a line of CSV")


def _join(values: Sequence[bytes | None]) -> bytes:
    lines = []
    for index, value in enumerate(values):
        if value is None:
            raise Unparsable(index, "the value is null (a tombstone), and format=csv needs a line; format=raw reads it")
        line = value.removesuffix(b"\n").removesuffix(b"\r")
        if b"\n" in line or b"\r" in line:
            raise Unparsable(index, "the value has a line break, and format=csv needs one line")
        lines.append(line)
    return b"".join([_MARK, b"\n".join([*lines, b""])])


def _said(error: Exception) -> str:
    """The parser's words, without its numbers of rows, which count something else."""
    return re.sub(r"Row #\d+: ", "", str(error))


def _is_supported(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64())
        or pa.types.is_decimal128(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
