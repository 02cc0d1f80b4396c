"""JSON values parsed as Arrow, many at a time, each exactly once or not at all.

Values go to pyarrow's JSON reader joined by newlines. It returns one row for each *object* it finds, so one value with
two objects would shift every row after it. Why a row is exactly one value here: every value begins with `{` and ends
with `}`; no JSON text may contain `}` newline `{` (a comma is missing; in strings a newline is forbidden), so no object
reaches over the seam between two values; so each value holds at least one whole object, and when there are as many
rows as values, exactly one.

What the reader would do wrong is done here: it parses no dates, drops the zone of a timestamp without one, doesn't
check UTF-8 in keys it skips, and its errors don't name the record. What it must not see at all
`onefold.core.values.json_vetting` finds.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import partial

import pyarrow as pa
import pyarrow.json as pj

from onefold.core.errors import ConfigError
from onefold.core.values.batches import empty_batch
from onefold.core.values.ddl import type_name
from onefold.core.values.decimals import wide
from onefold.core.values.json_vetting import Vetting
from onefold.sources.formats.compiled_json import CompiledJson
from onefold.sources.formats.value_range import check_column, has_infinity, is_exact, too_large
from onefold.sources.formats.values import DECIMAL_WORDS, Lines, Unparsable, Values, array_of, too_much

_BLANK = b" \t\r\n"
_BYTES_MAX = 2**31 - 1  # of a block, which ends behind them
_ERRORS = (pa.ArrowException, ValueError, TypeError)


class _Miscounted(ValueError):
    pass


def check(schema: pa.Schema) -> None:
    """Raise `ConfigError` for a column that can't be parsed exactly."""
    if not len(schema):
        raise ConfigError(
            "schema-missing", "format=json needs a schema with at least one column: schema='id long, ...'"
        )
    for field in schema:
        if pa.types.is_binary(field.type):
            continue
        if (bad := _unsupported(field.type)) is not None:
            raise ConfigError(
                "type-unsupported",
                f"format=json cannot parse the column {field.name!r}: {bad} is not supported there. Read it as a string"
                " if the value is one; or, of Kafka, with format=raw and Spark's from_json",
            )


class JsonParser:
    """One row for each value, with exactly this schema.

    Missing fields are null, fields outside the schema are passed over. Integers and decimals are exact or refused (a
    decimal may be a text, and have `DIGITS_MAX` digits); a timestamp is an instant: with its offset, or in UTC if it
    has none; a timestamp_ntz or date has none; binary is base64.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._vetting = Vetting(schema)
        self._compiled = CompiledJson.of(schema)

    def parse(self, values: Values) -> pa.RecordBatch:
        if not values:  # the reader calls them an empty file
            return empty_batch(self._schema)
        return self._parse(values) if self._compiled is None else self._compiled.parse(values, self._parse)

    def _parse(self, values: Values) -> pa.RecordBatch:
        try:
            return _parse_all(values, self._schema, self._vetting)
        except _ERRORS as error:
            if len(values) == 1:
                raise Unparsable(0, _reason(values[0], self._schema, self._vetting) or str(error)) from None
            raise Unparsable(_index(error, values), str(error)) from None


def _parse_all(values: Values, schema: pa.Schema, vetting: Vetting) -> pa.RecordBatch:
    lines = _lines(values)
    if (refused := vetting.refused(lines, partial(array_of, values))) is not None:
        raise Unparsable(*refused)
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=_readable(schema), unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(values):
        raise _Miscounted(f"{table.num_rows} JSON objects in one value")
    arrays = [_convert(table.column(i).combine_chunks(), field) for i, field in enumerate(schema)]
    for array, field in zip(arrays, schema, strict=True):
        check_column(array, field)
        if has_infinity(array):  # JSON has no infinity, so it was a number such as 1e400
            raise ValueError(too_large(field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lines(values: Values) -> pa.Buffer:
    """All values with a newline between, of which each begins with `{` and ends with `}`; raises if one doesn't."""
    if isinstance(values, Lines) and values.are_objects:
        lines = values.buffer()
        if not values.is_ascii:
            ends = pa.array([0, lines.size], pa.int32()).buffers()[1]
            pa.StringArray.from_buffers(1, ends, lines).validate(full=True)
        return lines
    joined = _join(list(values) if isinstance(values, Lines) else values)
    if len(joined) >= _BYTES_MAX:
        raise too_much(len(values))
    if not joined.isascii():
        joined.decode("utf-8")
    return pa.py_buffer(joined)


def _join(values: Values) -> bytes:
    """All values with a newline between; raises if one doesn't begin with `{` and end with `}`."""
    try:
        joined = b"\n".join(values)  # type: ignore[arg-type]  # a null raises TypeError
        seams = len(values) - 1
        if (
            joined[:1] == b"{"
            and joined[-1:] == b"}"
            and joined.count(b"\n") == seams  # so that every newline is a seam
            and joined.count(b"}\n{") == seams
        ):
            return joined
    except TypeError:
        pass
    stripped = []
    for index, value in enumerate(values):
        text = value.strip(_BLANK) if value is not None else b""
        if text[:1] != b"{" or text[-1:] != b"}":
            raise Unparsable(index, _not_an_object(value))
        stripped.append(text)
    return b"\n".join(stripped)


def _not_an_object(value: bytes | None) -> str:
    if value is None:
        return "the value is null (a tombstone), and format=json needs an object; format=raw reads it"
    if not value.strip(_BLANK):
        return "the value is empty, and format=json needs an object"
    return "the value is not a JSON object (it does not begin with { and end with })"


def _readable(schema: pa.Schema) -> pa.Schema:
    """What pyarrow's reader is asked for: texts where it would not parse the type as we want it."""
    return pa.schema([pa.field(field.name, _read_as(field.type)) for field in schema])


def _read_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind[i].name, _read_as(kind[i].type)) for i in range(kind.num_fields)])
    if pa.types.is_decimal(kind):
        return wide(kind)
    as_text = pa.types.is_date(kind) or pa.types.is_binary(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    return pa.string() if as_text else kind


def _convert(array: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_binary(field.type):
        decoded = [None if text is None else base64.b64decode(text, validate=True) for text in array.to_pylist()]
        return pa.array(decoded, field.type)
    return array if array.type == field.type else array.cast(field.type)


def _index(error: Exception, values: Values) -> int | None:
    """The index of the value that pyarrow's error names, by row or by the text it quotes; None if it names none."""
    said = str(error)
    if (row := re.search(r" in row (\d+)$", said)) is not None:
        index = int(row[1])  # of an object, of which one value may have many
        return index if index < len(values) else None
    text = re.search(r"couldn't parse:(.+)$", said) or re.search(r": (\S+) requires scale", said)
    if text is None:
        return None
    part = text[1].encode()
    having = [index for index, value in enumerate(values) if value is not None and part in value]
    return having[0] if len(having) == 1 else None


def _reason(value: bytes | None, schema: pa.Schema, vetting: Vetting) -> str | None:
    """None where the value can be read."""
    try:
        _parse_all([value], schema, vetting)
        return None
    except Unparsable as error:
        return error.reason
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8: {error.reason} at byte {error.start}"
    except _Miscounted as error:
        return str(error)
    except _ERRORS as error:
        reason = _said(error)
    for field in schema:  # which one was it?
        try:
            _parse_all([value], pa.schema([field]), vetting)
        except _ERRORS as error:
            said = _said(error)
            is_told = said == reason and "field '" in reason
            return reason if is_told else f"field {field.name!r} ({type_name(field.type)}): {said}"
    return reason


def _said(error: Exception) -> str:
    """The parser's words, without the row numbers, which count something else."""
    if isinstance(error, binascii.Error):
        return f"not base64: {error}"
    text = re.sub(r" in row \d+$|^Failed to convert JSON to decimal256\(\S+ \d+\): ", "", str(error))
    changed = re.fullmatch(r"JSON parse error: Column\((.*)\) changed from (\w+) to (\w+)", text)
    if changed is not None:
        path = changed[1].strip("/").replace("/", ".")
        return f"{path or 'the value'} is a JSON {changed[3]}, not a {changed[2]}"
    return DECIMAL_WORDS.sub(r"\1 is no decimal", text)


def _unsupported(kind: pa.DataType) -> str | None:
    """The part of a type that can't be parsed, if there is one."""
    if pa.types.is_list(kind):
        return _unsupported(kind.value_type)
    if pa.types.is_struct(kind):
        return next((bad for i in range(kind.num_fields) if (bad := _unsupported(kind[i].type)) is not None), None)
    return None if is_exact(kind) or pa.types.is_large_string(kind) else str(kind)
