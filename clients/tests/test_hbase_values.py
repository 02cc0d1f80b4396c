"""Values that are almost right, on their way into cells of HBase and out of them: exact, or refused with the value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from onefold.clients.hbase.rows.encodings import decode, encode, fitting

# The column's type when the sink was opened, its encoding, and the values of a batch.
ALMOST: dict[str, tuple[pa.DataType, str, pa.Array, str]] = {
    "a fraction": (pa.int64(), "integer", pa.array([1, 1.7]), "1.0"),
    "a fraction as a long": (pa.int64(), "long", pa.array([None, 1.7]), "1.7"),
    "a fraction as a text": (pa.int64(), "string", pa.array([None, 1.7]), "1.7"),
    "beyond 64 bits": (pa.int64(), "integer", pa.array([0, 2**63], pa.uint64()), "9223372036854775808"),
    "a third place": (pa.decimal128(12, 2), "decimal", pa.array([Decimal("0.105")]), "0.105"),
    "an aware time": (pa.timestamp("us"), "timestamp", pa.array([0], pa.timestamp("us", "UTC")), "1970"),
    "a naive time": (pa.timestamp("us", "UTC"), "timestamp", pa.array([0], pa.timestamp("us")), "1970"),
    "nanoseconds": (pa.timestamp("us"), "timestamp", pa.array([0, 1], pa.timestamp("ns")), "000000001"),
    "a timestamp for a date": (pa.date32(), "date", pa.array([dt.datetime(2026, 1, 2)]), "2026"),
    "a number for a boolean": (pa.bool_(), "boolean", pa.array([1]), "1"),
    "no UTF-8": (pa.string(), "string", pa.array([b"a", b"\xff"]), "xff"),
    "a long beyond a double": (pa.float64(), "double", pa.array([2**53 + 1]), "9007199254740993"),
}


@pytest.mark.parametrize("what", ALMOST)
def test_a_value_that_is_almost_right_is_not_written(what: str) -> None:
    kind, encoding, array, said = ALMOST[what]
    with pytest.raises(ValueError, match=said):
        encode(array, encoding, fitting(encoding, kind))


CELLS: dict[str, tuple[bytes, pa.DataType]] = {
    "a fraction": (b"1.7", pa.int64()),
    "beyond 64 bits": (b"9223372036854775808", pa.int64()),
    "a hexadecimal number": (b"0xff", pa.int64()),
    "a third place": (b"0.105", pa.decimal128(12, 2)),
    "a tiny exponent": (b"1e-999999999", pa.decimal128(12, 2)),
    "an aware time": (b"2026-01-02T00:00:00Z", pa.timestamp("us")),
    "nanoseconds": (b"2026-01-02 00:00:00.123456789", pa.timestamp("us")),
    "a timestamp for a date": (b"2026-01-02 03:04:05", pa.date32()),
    "no UTF-8": (b"\xff", pa.string()),
    "nothing": (b"", pa.int64()),
}


@pytest.mark.parametrize("what", CELLS)
def test_a_text_that_is_almost_right_is_not_read(what: str) -> None:
    cell, kind = CELLS[what]
    with pytest.raises(pa.ArrowInvalid):
        decode(pa.array([cell], pa.binary()), "string", kind)


def test_year_9999_is_itself() -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
    for encoding in ("string", "timestamp"):
        cells = encode(pa.array([last]), encoding, pa.timestamp("us"))
        assert decode(cells, encoding, pa.timestamp("us")).to_pylist() == [last]
