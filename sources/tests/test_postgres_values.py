"""Values of Postgres's as the types that were asked for: exact, or refused with the value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from onefold.sources.postgres.copy_reader import ValueRefused, convert

# What ADBC gives, the type that was asked for, and what is said of the value.
ALMOST: dict[str, tuple[pa.Array, pa.DataType, str]] = {
    "a third place": (pa.array(["1.50", "0.105"]), pa.decimal128(12, 2), "0.105"),
    "a fraction": (pa.array(["1", "1.7"]), pa.int64(), "1.7"),
    "beyond 64 bits": (pa.array([str(2**63)]), pa.int64(), str(2**63)),
    "a tiny exponent": (pa.array(["1", "1e-999999999"]), pa.decimal128(12, 2), "1e-999999999"),
    "no number": (pa.array(["NaN"]), pa.decimal128(12, 2), "NaN"),
    "a double for a float": (pa.array([0.5, 0.1]), pa.float32(), "0.1"),
    "a double for a long": (pa.array([None, 1.7]), pa.int64(), "1.7"),
    "a long for an int": (pa.array([1, 2**31]), pa.int32(), "2147483648"),
    "a long for a double": (pa.array([2**53 + 1]), pa.float64(), "9007199254740993"),
    "an aware time for a naive one": (
        pa.array([dt.datetime(2026, 1, 2)], pa.timestamp("us", "UTC")),
        pa.timestamp("us"),
        "2026, 1, 2",
    ),
    "infinity": (pa.array([2**63 - 1], pa.int64()).view(pa.timestamp("us")), pa.timestamp("us"), "infinity"),
    "no UTF-8": (pa.array([b"\xff"]), pa.string(), "xff"),
    "a fraction in an array": (pa.array([[1.0], [1.7]]), pa.list_(pa.int64()), "1.7"),
}


@pytest.mark.parametrize("what", ALMOST)
def test_a_value_that_is_almost_right_is_refused(what: str) -> None:
    array, kind, said = ALMOST[what]
    with pytest.raises(ValueRefused, match=said):
        convert(array, kind)


EXACT: dict[str, tuple[pa.Array, pa.DataType, list[Any]]] = {
    "a numeric": (pa.array(["1.5", None]), pa.decimal128(12, 2), [Decimal("1.50"), None]),
    "a numeric for a long": (pa.array(["9223372036854775807"]), pa.int64(), [2**63 - 1]),
    "a long for a decimal": (pa.array([2**63 - 1]), pa.decimal128(38, 18), [Decimal(2**63 - 1)]),
    "year 9999": (
        pa.array([dt.datetime.max], pa.timestamp("us", "UTC")),
        pa.timestamp("us", "UTC"),
        [dt.datetime.max.replace(tzinfo=dt.UTC)],
    ),
    "a half": (pa.array([0.5]), pa.float32(), [0.5]),
    "an array": (pa.array([[1], None, [2, None]]), pa.list_(pa.int16()), [[1], None, [2, None]]),
}


@pytest.mark.parametrize("what", EXACT)
def test_a_value_that_a_type_takes_is_itself(what: str) -> None:
    array, kind, values = EXACT[what]
    found = convert(array, kind)
    assert found.type == kind
    assert found.to_pylist() == values
