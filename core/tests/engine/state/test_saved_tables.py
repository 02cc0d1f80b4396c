"""Tables of savepoints, through the files that have them."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.engine.savepoints.saved_tables import from_file, readable, to_file

_UNITS = ("s", "ms", "us", "ns")
_NUMBERS = [0, 1, -1, None, 2**62, -(2**62), 2**63 - 1, -(2**63)]
_NANS = np.array([0, 1 << 63, 0x7FF8_0000_0000_0000, 0x7FF8_0000_0000_0001, 0xFFF0_0000_0000_0000], np.uint64)


def _viewed(kind: pa.DataType) -> pa.Array:
    return pa.array(_NUMBERS, pa.int64()).view(kind)


_COLUMNS = {
    **{f"at {unit}": _viewed(pa.timestamp(unit)) for unit in _UNITS},
    **{f"at {unit} in Berlin": _viewed(pa.timestamp(unit, "Europe/Berlin")) for unit in _UNITS},
    **{f"for {unit}": _viewed(pa.duration(unit)) for unit in _UNITS},
    "time32 s": pa.array([0, None, 86_399], pa.int32()).view(pa.time32("s")),
    "time64 ns": pa.array([0, None, 86_399], pa.int64()).view(pa.time64("ns")),
    "date64": pa.array([0, None, -86_400_000], pa.int64()).view(pa.date64()),
    "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "double": pa.array(_NANS.view(np.float64)),
    "half": pa.array(np.array([1.5, -0.0], np.float16)),
    "scale below 0": pa.array([Decimal("1E+5"), None], pa.decimal128(38, -5)),
    "decimal256": pa.array([Decimal(10) ** 60, None], pa.decimal256(76, 3)),
    "no bytes": pa.array([b"", None], pa.binary(0)),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "no fields": pa.array([{}, None], pa.struct([])),
    "times": pa.array([[1, None], None, []], pa.list_(pa.timestamp("s"))),
    "struct": pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.time32("s"))])),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "words": pa.array(["a", None, "b", "a"]).dictionary_encode(),
    "numbers": pa.array([1, None, 2, 1]).dictionary_encode(),
    "nothing": pa.nulls(3),
}


@pytest.mark.parametrize("named", _COLUMNS)
def test_a_column_of_any_type_comes_back_bit_by_bit(named: str) -> None:
    column = _COLUMNS[named]
    table = pa.table({"k": pa.array(range(len(column))), "v": column}).replace_schema_metadata({"a": "b"})
    again = from_file(to_file(table))
    assert again.schema.equals(table.schema) and again.schema.metadata == table.schema.metadata
    (found,) = again.column("v").chunks
    found.validate(full=True)
    assert found.equals(column) or (named == "double" and np.array_equal(found.to_numpy().view(np.uint64), _NANS))


@pytest.mark.parametrize("named", _COLUMNS)
def test_a_column_of_any_type_is_readable_and_its_times_stay_apart(named: str) -> None:
    column = readable(pa.table({"v": _COLUMNS[named]})).column(0).to_pylist()
    assert len(column) == len(_COLUMNS[named])
    if named.startswith(("at", "for")):
        assert len({*column}) == len(_NUMBERS)


def test_chunks_and_names_that_are_there_twice_come_back() -> None:
    chunks = pa.chunked_array([pa.array([1, 2], pa.time32("s")), pa.array([3], pa.time32("s"))])
    table = pa.Table.from_arrays([chunks, chunks, pa.chunked_array([[1, 2, 3]])], names=["a", "a", "__batch_index"])
    assert from_file(to_file(table)).equals(table)
    assert pq.read_metadata(pa.BufferReader(to_file(table))).num_rows == 3
    assert from_file(to_file(table.slice(0, 0))).num_rows == 0
