"""Rows of functions: values of their columns' types, held by value, or an error that names column, value and row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import BadRecord
from onefold.core.values.ddl import schema_of
from onefold.flow.processing.rows import RowCollector, Side, values_of

EASTERN = dt.timezone(dt.timedelta(hours=-5))
ALMOST: dict[str, tuple[str, Any, str]] = {
    "a fraction": ("long", 1.7, "1.7"),
    "a fraction in a decimal": ("long", Decimal("1.7"), "Decimal('1.7')"),
    "a whole float": ("long", 1.0, "1.0"),
    "a fraction in a list": ("array<long>", [1.7], "1.7"),
    "a timestamp for a date": ("date", dt.datetime(2026, 1, 2, 23, 59), "datetime.datetime(2026, 1, 2, 23, 59)"),
    "a number for a timestamp": ("timestamp", 1_767_225_600, "1767225600"),
    "an aware time": ("timestamp_ntz", dt.datetime(2026, 1, 2, 3, tzinfo=EASTERN), "datetime.datetime(2026, 1, 2, 3"),
    "a naive time": ("timestamp", dt.datetime(2026, 1, 2), "datetime.datetime(2026, 1, 2, 0, 0)"),
    "an unknown key": ("struct<a: long>", {"a": 1, "lost": 2}, "'lost'"),
    "a third place": ("decimal(12,2)", Decimal("0.105"), "Decimal('0.105')"),
    "a tiny exponent": ("decimal(12,2)", Decimal("1E-999999999"), "Decimal('1E-999999999')"),
    "a long beyond 64 bits": ("long", 2**63, "9223372036854775808"),
    "no UTF-8": ("string", b"\xff", "b'\\xff'"),
    "a null": ("long NOT NULL", None, "null"),
}  # fmt: skip


@pytest.mark.parametrize("what", ALMOST)
def test_a_value_that_is_almost_right_is_named_with_its_operator_column_and_row(what: str) -> None:
    kind, value, said = ALMOST[what]
    with pytest.raises(BadRecord) as refused:
        rows_of([(8, value)], f"id long, v {kind}")
    assert refused.value.code == "function-value"
    assert refused.value.message.startswith(f"split gives {said}")
    assert "in the column 'v" in refused.value.message
    assert "of the row (8, " in refused.value.message


def test_the_last_second_of_9999_is_itself() -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
    assert rows_of([(last, last.replace(tzinfo=dt.UTC))], "a timestamp_ntz, b timestamp") == [
        (last, last.replace(tzinfo=dt.UTC))
    ]


def test_what_is_changed_after_it_was_given_stays_as_it_was() -> None:
    tags, more, data, row = ["a"], {"tags": ["x"], "n": 1}, bytearray(b"d"), [1]
    collector = RowCollector(
        "split",
        {
            None: schema_of("tags array<string>, more struct<tags: array<string>, n: long>, data binary"),
            "ids": schema_of("id long"),
        },
    )
    collector.add((tags, more, data))
    collector.add(Side("ids", row))
    tags.append("b")
    more["tags"].append("y")  # type: ignore[attr-defined]
    more["n"] = 2
    data[0] = 0
    row[0] = 2
    found = {output: batch.to_pylist() for output, batch in collector.take()}
    assert found == {
        None: [{"tags": ["a"], "more": {"tags": ["x"], "n": 1}, "data": b"d"}],
        "ids": [{"id": 1}],
    }


def test_a_value_that_python_has_none_for_is_named_by_its_column() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([2**62], pa.timestamp("us"))], ["at"])
    with raises(BadRecord, "function-value", "'at'"):
        list(values_of(batch))


def rows_of(rows: list[Any], ddl: str) -> list[Any]:
    collector = RowCollector("split", {None: schema_of(ddl)})
    for row in rows:
        collector.add(row)
    ((_, batch),) = collector.take()
    return [tuple(row.values()) for row in batch.to_pylist()]
