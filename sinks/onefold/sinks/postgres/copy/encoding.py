"""A task's rows as COPY's binary format wants them, into the target itself or into the stage."""

from __future__ import annotations

from array import array as machine_array
from dataclasses import dataclass
from functools import lru_cache
from sys import byteorder
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder, encoders
from pgpq.schema import Jsonb

from onefold.clients.postgres.quoting import identifier
from onefold.core.checks import require
from onefold.core.values.batches import repeated
from onefold.core.values.exact import exact_cast
from onefold.core.values.json_encoder import nullable_texts
from onefold.sinks.postgres.schema.type_mapping import Column, Wire
from onefold.sinks.postgres.sink_plan import ATTEMPT, DELETED, PostgresPlan
from onefold.sinks.sink_writer import check_names


@dataclass(frozen=True, slots=True)
class _Staged:
    """What the stage has beside the rows' own columns."""

    position: tuple[Column, ...]
    position_names: tuple[str, ...]
    deletes: bool


@lru_cache(maxsize=64)  # each task has an encoding of its own, of the same columns
def _wire(columns: tuple[Column, ...], staged: _Staged | None) -> tuple[pa.Schema, dict[str, Any], str]:
    """The columns as COPY takes them, their encoders, and their names in SQL."""
    names = [column.name for column in columns]
    pairs = [_builder(column) for column in columns]
    if staged is not None:
        pairs += [_builder(column) for column in staged.position]
        names += staged.position_names
        field = pa.field(ATTEMPT, pa.int64())
        pairs.append((field, encoders.Int64EncoderBuilder(field)))
        names.append(ATTEMPT)
        if staged.deletes:
            field = pa.field(DELETED, pa.bool_())
            pairs.append((field, encoders.BooleanEncoderBuilder(field)))
            names.append(DELETED)
    # The names are ours alone: COPY goes by the order of the columns, and pgpq by their own names.
    schema = pa.schema([field.with_name(name) for name, (field, _) in zip(names, pairs, strict=True)])
    by_name = dict(zip(names, (encoder for _, encoder in pairs), strict=True))
    return schema, by_name, ", ".join(map(identifier, names))


class Encoding:
    """What a COPY of this plan looks like. `attempt` marks the rows of the stage."""

    def __init__(self, plan: PostgresPlan, attempt: int) -> None:
        self._plan, self._attempt = plan, attempt
        self._schema: pa.Schema | None = None  # of the last batch: checked once, not for each batch
        self._columns: tuple[Column, ...] = plan.columns
        staged = None
        if plan.stage_table is not None:
            deletes = plan.changes is not None and plan.changes.deletes
            staged = _Staged(plan.position, tuple(plan.position_names), deletes)
        self._wire_schema, self._encoders, self._names = _wire(plan.columns, staged)
        self.statement = self.copying(plan.stage_table or plan.target)

    def copying(self, table: str) -> str:
        """The COPY into a table with these columns."""
        return f"COPY {table} ({self._names}) FROM STDIN (FORMAT BINARY)"

    def encoder(self) -> ArrowToPostgresBinaryEncoder:
        """A fresh encoder: each serves one COPY."""
        return ArrowToPostgresBinaryEncoder.new_with_encoders(self._wire_schema, self._encoders)

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaMismatch unless rows of `schema` are those that the sink was opened with."""
        if self._schema is not None and self._schema.equals(schema):
            return
        check_names(schema.names, self._plan.names)
        self._schema = schema

    def wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the encoder takes them. Raises ValueError for values that Postgres cannot hold."""
        arrays = [self._array(column, batch) for column in self._columns]
        changes = self._plan.changes
        if changes is not None:
            changes.check_values(batch)
        if self._plan.stage_table is not None:
            arrays += [self._array(column, batch) for column in self._plan.position]
            arrays.append(repeated(self._attempt, batch.num_rows))
            if changes is not None and changes.deletes:
                arrays.append(changes.deleted(batch))
        return pa.RecordBatch.from_arrays(arrays, schema=self._wire_schema)

    def _array(self, column: Column, batch: pa.RecordBatch) -> Any:
        values = batch.column(column.name)
        try:
            return to_wire(column, values)
        except (ValueError, pa.ArrowException) as error:
            raise ValueError(f"column {column.name}: {error}") from error


def _builder(column: Column) -> tuple[pa.Field, Any]:
    """pgpq's view of a column: the field that `to_wire` delivers, and its encoder."""
    field = pa.field(column.name, column.arrow)
    if column.wire in (Wire.JSONB, Wire.JSONB_TEXT):
        return field, encoders.StringEncoderBuilder.new_with_output(field, Jsonb())
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
