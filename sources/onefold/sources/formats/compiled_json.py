"""JSON objects as Arrow columns by json.c, which takes what it is sure of: the rest is another parser's.

It is three to six times as fast as `json.JsonParser` by itself, and has to give the very same rows: what a value
becomes must not depend on whether there is a compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache

import pyarrow as pa

from onefold.core.checks import require
from onefold.sources.formats.values import Lines, Unparsable, Values, array_of
from onefold.sources.native.library import load, wanted

_BOOLEAN, _INTEGER, _FLOAT, _DECIMAL, _DATE, _TIMESTAMP, _LOCAL_TIMESTAMP, _TEXT = range(8)


class _Column(ctypes.Structure):
    """json.c's onefold_column."""

    _fields_ = (
        ("name", c_char_p),
        ("name_bytes", c_int32),
        ("kind", c_int32),
        ("width", c_int32),
        ("precision", c_int32),
        ("scale", c_int32),
        ("is_required", c_int32),
        ("valid", c_void_p),
        ("data", c_void_p),
        ("room", c_int64),
        ("ends", c_void_p),
        ("nulls", c_int64),
    )


@cache
def find() -> ctypes.CDLL | str:
    """The library with json.c's functions declared; or why it can't be used."""
    library = load()
    if isinstance(library, str):
        return library
    library.onefold_json.restype = c_int64
    library.onefold_json.argtypes = (c_void_p, c_void_p, c_int64, c_void_p, c_int32, c_void_p)
    library.onefold_texts_free.restype = None
    library.onefold_texts_free.argtypes = (c_void_p, c_int32)
    library.onefold_column_size.restype = c_size_t
    require(ctypes.sizeof(_Column) == library.onefold_column_size(), "a column of json.c has another size here")
    return library


def described() -> str:
    """How this process parses JSON, in words."""
    found = find()
    if wanted(find=find) is not None:
        return "JSON is parsed by the compiled parser, as far as it is sure"
    why = f"not used, {found}" if isinstance(found, str) else "turned off"
    return f"JSON is parsed by pyarrow alone: the compiled parser is {why}"


class CompiledJson:
    """A parser of one schema's columns."""

    def __init__(self, library: ctypes.CDLL, schema: pa.Schema) -> None:
        self._c = library
        self._schema = schema
        self._columns = [_column(field) for field in schema]

    @classmethod
    def of(cls, schema: pa.Schema) -> CompiledJson | None:
        """None where the library is not there or not wanted, or a column has a type that json.c does not know."""
        library = wanted(find=find)
        if library is None or not len(schema) or any(_kind(field.type) is None for field in schema):
            return None
        return cls(library, schema)

    def parse(self, values: Values, parse_left: Callable[[Values], pa.RecordBatch]) -> pa.RecordBatch:
        """One row for each value, of which `parse_left` parses those that json.c has left, together; what it raises
        names the value among all of them."""
        array = values.lines() if isinstance(values, Lines) else array_of(values)
        count = len(array)
        buffers = [_buffers(field.type, count) for field in self._schema]
        columns = (_Column * len(buffers))(*self._columns)
        for column, (valid, data, ends) in zip(columns, buffers, strict=True):
            column.valid = valid.address
            column.data, column.ends = data.address if data else None, ends.address if ends else None
        left = _zeros(count)
        _, ends, text = array.buffers()
        at = ctypes.addressof(columns)
        try:
            skipped = self._c.onefold_json(
                text.address if text else None, ends.address + 4 * array.offset, count, at, len(columns), left.address
            )
            if skipped < 0:
                raise MemoryError
            if skipped == count:
                return parse_left(values)
            arrays = [
                _array(field.type, count, parts, column, 0 if not column.nulls and not skipped else -1)
                for field, parts, column in zip(self._schema, buffers, columns, strict=True)
            ]
        finally:
            self._c.onefold_texts_free(at, len(columns))
        taken = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return taken if not skipped else _completed(taken, values, left, parse_left)


def _column(field: pa.Field) -> _Column:
    kind, name = field.type, field.name.encode()
    is_decimal = pa.types.is_decimal(kind)
    has_width = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return _Column(
        name=name,
        name_bytes=len(name),
        kind=_kind(kind),
        width=kind.bit_width if has_width else 0,
        precision=kind.precision if is_decimal else 0,
        scale=kind.scale if is_decimal else 0,
        is_required=not field.nullable,
    )


def _kind(kind: pa.DataType) -> int | None:
    is_ = pa.types
    if is_.is_boolean(kind):
        return _BOOLEAN
    if is_.is_signed_integer(kind):
        return _INTEGER
    if kind in (pa.float32(), pa.float64()):
        return _FLOAT
    if is_.is_decimal128(kind) and kind.scale >= 0:
        return _DECIMAL
    if is_.is_date32(kind):
        return _DATE
    if is_.is_timestamp(kind) and kind.unit == "us":
        return _LOCAL_TIMESTAMP if kind.tz is None else _TIMESTAMP
    return _TEXT if is_.is_string(kind) else None


_Buffers = tuple[pa.Buffer, pa.Buffer | None, pa.Buffer | None]


def _buffers(kind: pa.DataType, count: int) -> _Buffers:
    """Validity; values, but those of texts, whose number of bytes json.c finds; and of texts where they end."""
    valid = _zeros((count + 7) // 8)
    if pa.types.is_string(kind):
        return valid, None, pa.allocate_buffer(4 * (count + 1))
    if pa.types.is_boolean(kind):
        return valid, _zeros((count + 7) // 8), None
    return valid, pa.allocate_buffer(kind.bit_width // 8 * count), None


def _zeros(size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    ctypes.memset(buffer.address, 0, size)
    return buffer


def _array(kind: pa.DataType, count: int, parts: _Buffers, column: _Column, null_count: int) -> pa.Array:
    valid, data, ends = parts
    if ends is not None:
        size = pa.Array.from_buffers(pa.int32(), count + 1, [None, ends])[count].as_py()
        data = pa.allocate_buffer(size)
        ctypes.memmove(data.address, column.data, size)
    buffers = [valid if null_count else None, *([ends] if ends is not None else []), data]
    return pa.Array.from_buffers(kind, count, buffers, null_count=null_count)


def _completed(
    taken: pa.RecordBatch, values: Values, left: pa.Buffer, parse_left: Callable[[Values], pa.RecordBatch]
) -> pa.RecordBatch:
    """The same with the rows that were left, each in its place."""
    import pyarrow.compute as pc  # see `Lines.array`

    is_left = pa.Array.from_buffers(pa.uint8(), len(taken), [None, left]).cast(pa.bool_())
    places = pc.indices_nonzero(is_left)
    try:
        rest = parse_left(values.take(places) if isinstance(values, Lines) else [values[i] for i in places.to_pylist()])
    except Unparsable as error:
        at = None if error.index is None else places[error.index].as_py()
        raise Unparsable(at, error.reason, error.is_permanent, error.is_torn) from None
    columns = [pc.replace_with_mask(*each) for each in zip(taken, [is_left] * rest.num_columns, rest, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=taken.schema)
