"""Values that are almost right, on their way into Postgres, SQL databases and Kafka: exact, or named in an error.

The rows' types are those with which the sink was opened; batches may come with others.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import BadRecord
from onefold.core.values.exact import Mismatch
from onefold.sinks.kafka.encoding import RecordEncoding
from onefold.sinks.postgres.copy.encoding import to_wire
from onefold.sinks.postgres.schema.type_mapping import Column, PostgresType, fit, own
from onefold.sinks.sql.adapters.sql_kinds import kind_of, values_of

ZONED, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
START = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# The type with which the sink was opened, and the values of a batch: the second is to blame.
ALMOST: dict[str, tuple[pa.DataType, pa.Array, str]] = {
    "fractions": (pa.int64(), pa.array([None, 1.7]), "1.7"),
    "whole floats": (pa.int64(), pa.array([None, 1.0]), "1.0"),
    "beyond 64 bits": (pa.int64(), pa.array([0, 2**63], pa.uint64()), "9223372036854775808"),
    "a third place": (pa.decimal128(12, 2), pa.array([Decimal("0.100"), Decimal("0.105")]), "Decimal('0.105')"),
    "digits that wrap around": (pa.decimal128(38, 18), pa.array([Decimal(1), Decimal(10**22)]), "Decimal('1000000"),
    "a float for a decimal": (pa.decimal128(12, 2), pa.array([None, 0.1]), "0.1"),
    "beyond a double": (pa.float64(), pa.array([0, 2**53 + 1]), "9007199254740993"),
    "an aware time": (NAIVE, pa.array([None, dt.datetime(2026, 1, 2)], ZONED), "datetime.datetime(2026, 1, 2"),
    "a naive time": (ZONED, pa.array([None, dt.datetime(2026, 1, 2)], NAIVE), "datetime.datetime(2026, 1, 2"),
    "nanoseconds": (NAIVE, pa.array([0, 1], pa.timestamp("ns")), "00:00:00.000000001"),
    "a timestamp for a date": (pa.date32(), pa.array([None, dt.datetime(2026, 1, 2)]), "datetime.datetime(2026"),
    "no UTF-8": (pa.string(), pa.array([b"a", b"\xff"]), "b'\\xff'"),
    "a number for a text": (pa.string(), pa.array([None, 1]), "1"),
    "a text for a number": (pa.int64(), pa.array([None, "1"]), "'1'"),
}


def postgres(kind: pa.DataType, array: pa.Array) -> Any:
    column = own("c", kind)
    assert column is not None
    return to_wire(column, array)


def database(kind: pa.DataType, array: pa.Array) -> Any:
    found = kind_of(kind)
    assert found is not None
    return values_of(found, array)


@pytest.mark.parametrize("what", ALMOST)
@pytest.mark.parametrize("border", [postgres, database])
def test_a_value_that_is_almost_right_is_refused_with_its_row(border: Any, what: str) -> None:
    kind, array, said = ALMOST[what]
    with pytest.raises(Mismatch) as refused:
        border(kind, array)
    assert said in refused.value.value
    assert refused.value.row == 1


EXACT: dict[str, tuple[pa.DataType, pa.Array, list[Any]]] = {
    "the largest uint64": (pa.uint64(), pa.array([2**64 - 1], pa.uint64()), [Decimal(2**64 - 1)]),
    "year 9999": (NAIVE, pa.array([dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]), [dt.datetime.max]),
    "the same instant": (ZONED, pa.array([0], pa.timestamp("ms", "Asia/Tokyo")), [START]),
    "encoded texts": (pa.dictionary(pa.int8(), pa.string()), pa.array(["a", None]).dictionary_encode(), ["a", None]),
    "views": (pa.string(), pa.array(["a"], pa.string_view()), ["a"]),
    "a narrower number": (pa.int64(), pa.array([1], pa.int8()), [1]),
}  # fmt: skip


@pytest.mark.parametrize("what", EXACT)
@pytest.mark.parametrize("border", [postgres, database])
def test_a_value_of_another_width_unit_or_encoding_is_itself(border: Any, what: str) -> None:
    kind, array, values = EXACT[what]
    assert border(kind, array).to_pylist() == values


def test_lists_go_into_postgres_exactly_or_not_at_all() -> None:
    target = PostgresType("_int4", -1, "int4", False, "integer[]")
    column = fit("c", pa.list_(pa.int32()), target)
    assert isinstance(column, Column)
    assert to_wire(column, pa.array([[1], None], pa.large_list(pa.int64()))).to_pylist() == [[1], None]
    with pytest.raises(Mismatch, match=r"row 1, \[\]: 1\.7"):
        to_wire(column, pa.array([None, [1.7]]))


def test_a_partition_beyond_kafkas_is_named() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b"]), "partition": pa.array([1, 2**40])})
    with raises(BadRecord, "value-not-encodable", "'partition'"):
        list(RecordEncoding("raw").records(batch))
