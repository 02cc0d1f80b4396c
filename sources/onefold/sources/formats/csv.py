"""Values that are a record of CSV each (RFC 4180, without a header), many at a time, each exactly once or not at all.

Values go to pyarrow's CSV reader joined by newlines, and none may hold a line break, but within quotes where that is
asked for. So only a quote that stays open could make one row of two values; and the reader takes `"a"b` for `ab`. So
values with quotes are held against the grammar before. What else it would do wrong is done here: decimals
(`onefold.core.values.decimals`), integers that are hexadecimal, and empty lines, of which it makes nulls, however many
fields there are to be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.core.values.ddl import type_name
from onefold.core.values.decimals import decimals_of
from onefold.sources.formats.value_range import check_column, has_infinity, is_exact, too_large
from onefold.sources.formats.values import DECIMAL_WORDS, Unparsable

_TORN = "a quote stays open, or something is between it and the next delimiter"
_BROKEN = "the value has a line break, and format=csv needs one line"
_BROKEN_OUTSIDE = "the value has a line break that is not within quotes"
_MARK = b"\xef\xbb\xbf"  # the reader drops one ahead of all lines: it gets its own, and each value keeps what it has


def check(schema: pa.Schema) -> None:
    """Raise `ConfigError` for a column that can't be parsed exactly."""
    if not len(schema):
        raise ConfigError("schema-missing", "format=csv needs a schema with at least one column: schema='id long, ...'")
    for field in schema:
        if not is_exact(field.type):
            raise ConfigError(
                "type-unsupported",
                f"format=csv cannot parse the column {field.name!r}: {field.type} is not supported there. Read it as a"
                " string",
            )


def check_delimiter(delimiter: str) -> None:
    if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ConfigError(
            "option-value", f"csv_delimiter is one ASCII character, no quote and no line break, not {delimiter!r}"
        )


class CsvParser:
    """One row for each value, by the order of its fields: a value with more or fewer of them is refused.

    An empty field is null, an empty one in quotes an empty string. A timestamp has its offset or a Z, a timestamp_ntz
    none. Booleans are true and false. Integers and decimals are exact or refused (a decimal may have `DIGITS_MAX`
    digits). With `multiline`, a field in quotes may have line breaks.
    """

    def __init__(self, schema: pa.Schema, delimiter: str, *, multiline: bool = False) -> None:
        self._schema = schema
        self._may_be_empty = len(schema) == 1  # a line without any delimiter is one field
        self._parse = pcsv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False, newlines_in_values=multiline)
        self._read_as = {field.name: _read_as(field.type) for field in schema}
        self._integers = {field.name: pa.string() for field in schema if pa.types.is_integer(field.type)}
        between = f"\\x{ord(delimiter):02x}"
        self._record = _record(between)
        self._unbroken = _record(between, "\\r\\n") if multiline else "^[^\\r\\n]*$"
        self._broken = _BROKEN_OUTSIDE if multiline else _BROKEN

    def parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        lines = _lines(values)
        if not self._may_be_empty and b"" in lines:  # of which the reader makes nulls
            raise Unparsable(lines.index(b""), f"the value is empty, and the schema has {len(self._schema)} fields")
        joined = b"".join([_MARK, b"\n".join([*lines, b""])])
        if b'"' in joined:
            whole = pc.match_substring_regex(pa.array(lines, pa.binary()), self._record)
            _refuse_first(pc.invert(whole), _TORN, is_torn=True)
        if b"\r" in joined or joined.count(b"\n") != len(lines):
            unbroken = pc.match_substring_regex(pa.array(lines, pa.binary()), self._unbroken)
            _refuse_first(pc.invert(unbroken), self._broken)
        if self._integers and any(
            mark in joined and b"0" + mark in joined for mark in (b"x", b"X")
        ):  # one byte is quick
            for name, texts in zip(self._integers, self._read(joined, self._integers), strict=True):
                # pyarrow reads them as hexadecimal, and bits beyond the type's are lost.
                _refuse_first(pc.match_substring_regex(texts, "[xX]"), f"field {name!r} is no decimal integer")
        found = self._read(joined, self._read_as)
        require(all(len(array) == len(values) for array in found), "no quote reaches over the end of its line")
        arrays = [_convert(array, field) for array, field in zip(found, self._schema, strict=True)]
        for array, field in zip(arrays, self._schema, strict=True):
            check_column(array, field)
            if has_infinity(array):  # an infinity that is written as one is what it says; 1e400 is not
                written = self._read(joined, {field.name: pa.string()})[0]
                is_number = pc.match_substring_regex(written, "[0-9]")
                _refuse_first(pc.and_(pc.is_inf(array), is_number), too_large(field))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _read(self, joined: bytes, types: dict[str, pa.DataType]) -> list[pa.Array]:
        """These columns, as these types."""
        options = pcsv.ReadOptions(use_threads=False, block_size=len(joined) + 1, column_names=self._schema.names)
        convert = pcsv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
            true_values=["true"],
            false_values=["false"],
        )
        try:
            table = pcsv.read_csv(pa.BufferReader(joined), options, self._parse, convert)
        except pa.ArrowInvalid as error:
            row = re.search(r"Row #(\d+): ", str(error))
            raise Unparsable(int(row[1]) - 1 if row else None, self._said(error)) from None
        return [column.combine_chunks() for column in table.columns]

    def _said(self, error: Exception) -> str:
        """The parser's words, with the column's name, and without its numbers of rows, which count something else."""
        text = re.sub(r"Row #\d+: ", "", str(error))
        found = re.fullmatch(r"In CSV column #(\d+): CSV conversion error to .*?: (.*)", text, re.DOTALL)
        if found is None:
            return text
        field = self._schema.field(int(found[1]))
        return f"field {field.name!r} ({type_name(field.type)}): {found[2]}"


def _record(between: str, no: str = "") -> str:
    """A pattern of all fields, in which `no` character of these is outside of quotes."""
    field = f'(?:"(?:[^"]|"")*"|[^"{between}{no}][^{between}{no}]*)?'
    return f"^{field}(?:{between}{field})*$"


def _refuse_first(is_bad: pa.BooleanArray, reason: str, *, is_torn: bool = False) -> None:
    if is_bad.true_count:
        raise Unparsable(pc.index(is_bad, True).as_py(), reason, is_torn=is_torn)


def _read_as(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_decimal(kind) else kind


def _convert(array: pa.Array, field: pa.Field) -> pa.Array:
    if not pa.types.is_decimal(field.type):
        return array
    try:
        return decimals_of(array, field.type)
    except pa.ArrowInvalid as error:
        said = DECIMAL_WORDS.sub(r"\1 is no decimal", str(error))
        raise Unparsable(None, f"field {field.name!r} ({type_name(field.type)}): {said}") from None


def _lines(values: Sequence[bytes | None]) -> list[bytes]:
    lines = []
    for index, value in enumerate(values):
        if value is None:
            raise Unparsable(index, "the value is null (a tombstone), and format=csv needs a line; format=raw reads it")
        lines.append(value.removesuffix(b"\n").removesuffix(b"\r"))
    return lines
