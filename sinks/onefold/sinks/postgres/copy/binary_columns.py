"""Whole columns as COPY's binary format wants them."""

from __future__ import annotations

from array import array as machine_array
from sys import byteorder
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pgpq import encoders, schema

from onefold.core.checks import require
from onefold.core.values.exact import exact_cast
from onefold.core.values.json_encoder import nullable_texts
from onefold.sinks.postgres.schema.type_mapping import Column, Wire

__all__ = ["builder", "to_wire"]


def builder(column: Column) -> tuple[pa.Field, Any]:
    """pgpq's view of a column: the field that `to_wire` delivers, and its encoder."""
    field = pa.field(column.name, column.arrow)
    if column.wire in (Wire.JSONB, Wire.JSONB_TEXT):
        return field, encoders.StringEncoderBuilder.new_with_output(field, schema.Jsonb())
    from pgpq import ArrowToPostgresBinaryEncoder

    return field, ArrowToPostgresBinaryEncoder.infer_encoder(field)


def to_wire(column: Column, values: Any) -> Any:
    """`values`, as the column's own type, as `column.arrow`.

    Raises ValueError (`Mismatch` and pa.ArrowInvalid are) for values that Postgres cannot hold.
    """
    values = exact_cast(values, column.source)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    match column.wire:
        case Wire.PLAIN | Wire.JSONB_TEXT:
            return exact_cast(values, column.arrow)
        case Wire.JSON | Wire.JSONB:
            return nullable_texts(values, "quote")
        case Wire.INSTANTS:
            return _instants(exact_cast(values, pa.list_(pa.timestamp("us", "UTC"))))
        case Wire.UUID:
            return _uuids(values.cast(pa.string()))
        case Wire.NULL:
            return pa.nulls(len(values), pa.string())


def _big_endian(code: str, values: Any) -> Any:
    """An integer array without nulls as fixed-size binary, most significant byte first."""
    width = values.type.bit_width // 8
    numbers = machine_array(code)
    require(
        numbers.itemsize == width,
        f"code {code!r} is {numbers.itemsize} bytes here, not {width}",
    )
    numbers.frombytes(memoryview(values.buffers()[1])[values.offset * width : (values.offset + len(values)) * width])
    if byteorder == "little":
        numbers.byteswap()
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(numbers.tobytes())]
    ).cast(pa.binary())


_EPOCH_MICROS = 946_684_800_000_000  # from 1970-01-01, Arrow's zero, to 2000-01-01, Postgres's
_TIMESTAMPTZ_OID = 1184


def _instants(lists: Any) -> Any:
    """list<timestamp[us, UTC]> as Postgres's binary array of timestamptz (array_recv in its arrayfuncs.c)."""
    offsets = lists.offsets
    start, end = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    values = lists.values.slice(start, end - start)
    micros = pc.subtract_checked(pc.fill_null(values.cast(pa.int64()), _EPOCH_MICROS), _EPOCH_MICROS)
    size = (8).to_bytes(4, "big")
    null = pa.scalar(b"\xff\xff\xff\xff")
    element = pc.if_else(
        values.is_valid(), pc.binary_join_element_wise(pa.scalar(size), _big_endian("q", micros), b""), null
    )
    mask = lists.is_null() if lists.null_count else None
    elements = pa.ListArray.from_arrays(pc.subtract(offsets, pa.scalar(start, offsets.type)), element, mask=mask)
    oid = _TIMESTAMPTZ_OID.to_bytes(4, "big")
    counts = _big_endian("i", pc.fill_null(pc.list_value_length(lists), 0))
    flag = (1).to_bytes(4, "big")  # "there may be nulls"
    header = pc.binary_join_element_wise(pa.scalar(flag + flag + oid), counts, pa.scalar((1).to_bytes(4, "big")), b"")
    full = pc.binary_join_element_wise(header, pc.binary_join(elements, b""), b"")
    empty = pa.scalar(bytes(8) + oid)  # no dimensions
    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), empty, full)


def _uuids(texts: Any) -> Any:
    digits = pc.replace_substring(texts, "-", "")
    good = pc.match_substring_regex(digits, "^[0-9A-Fa-f]{32}$")
    if not pc.all(good, min_count=0).as_py():  # with the default, nulls alone give null
        bad = pc.filter(texts, pc.invert(good))[0].as_py()
        raise ValueError(f"{bad!r} is not a UUID")
    filled = pc.fill_null(digits, "0" * 32)
    data = bytes.fromhex(pc.binary_join(pa.ListArray.from_arrays([0, len(filled)], filled), "")[0].as_py() or "")
    whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(filled), [None, pa.py_buffer(data)])
    return pc.if_else(texts.is_valid(), whole, pa.scalar(None, pa.binary(16))) if texts.null_count else whole
