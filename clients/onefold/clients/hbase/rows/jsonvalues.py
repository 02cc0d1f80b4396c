"""JSON texts as nested Arrow values, exactly: what `onefold.core.values.json_encoder` wrote comes back the same."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from onefold.core.values.decimals import wide
from onefold.core.values.json_vetting import Vetting

_NAME = "v"


def is_readable(kind: pa.DataType) -> bool:
    """Whether each value of the type comes back from its text."""
    if pa.types.is_list(kind):
        return is_readable(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(is_readable(kind[i].type) for i in range(kind.num_fields))
    known = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp, pa.types.is_date32)
    return any(check(kind) for check in (*known, pa.types.is_float32, pa.types.is_float64, pa.types.is_decimal128))


def parsed(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """The values; null where there is no text. Raises ValueError."""
    if not len(texts):
        return pa.nulls(0, kind)
    lines = pc.binary_join_element_wise(f'{{"{_NAME}":', pc.fill_null(texts, "null"), "}", "")
    data = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")[0].as_buffer()
    if (refused := Vetting(pa.schema([(_NAME, kind)])).refused(data, lambda: lines.cast(pa.binary()))) is not None:
        raise ValueError(refused[1])
    table = json.read_json(
        pa.BufferReader(data),
        read_options=json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=json.ParseOptions(
            explicit_schema=pa.schema([(_NAME, _wire(kind))]),
            newlines_in_values=True,
            unexpected_field_behavior="error",
        ),
    )
    values = table[_NAME].combine_chunks()
    if len(values) != len(texts):
        raise ValueError(f"{len(values)} JSON texts in {len(texts)} values")
    return values.cast(kind)


def _wire(kind: pa.DataType) -> pa.DataType:
    """The type for the JSON reader, which knows no dates, and few decimals exactly."""
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return wide(kind)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wire(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([kind[i].with_type(_wire(kind[i].type)) for i in range(kind.num_fields)])
    return kind
