"""Sums that go on from window to window, beside those that are counted anew for each."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.engine.logics.windows import running_sums as module
from onefold.engine.logics.windows.running_sums import running_sums

SIZE = 4
KIND = pa.decimal128(12, 2)
SCHEMA = pa.schema(
    {"key": pa.string(), "sub": pa.int64(), "$slice": pa.timestamp("us", "UTC"), "n": pa.int64(), "amount": KIND}
)
Row = tuple[str | None, int, int, int, Decimal]
ROW = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.integers(0, 1),
    st.integers(-6, 30),
    st.integers(-(2**40), 2**40),
    st.integers(-(10**6), 10**6).map(lambda n: Decimal(n).scaleb(-2)),
)


def batch_of(rows: list[Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = [[row[at] for row in rows] for at in range(len(schema))]
    kinds = [pa.int64() if pa.types.is_timestamp(kind) else kind for kind in schema.types]
    made = [pa.array(*each) for each in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(
        [each.view(kind) for each, kind in zip(made, schema.types, strict=True)], schema=schema
    )


@given(st.lists(ROW, min_size=1, max_size=40), st.integers(0, 3), st.sampled_from([1, 200_000]))
def test_each_window_has_the_sums_of_its_rows_and_keys_that_have_some(rows: list[Row], cut: int, pending: int) -> None:
    ends = sorted({end for _, _, at, *_ in rows for end in range(at + 1, at + SIZE + 1)})
    expected: dict[tuple[Any, ...], list[Any]] = {}
    for end in ends:
        for key, sub, at, n, amount in rows:
            if end - SIZE <= at < end:
                sums = expected.setdefault((key, sub, end - SIZE), [0, Decimal(0)])
                sums[0] += n
                sums[1] += amount
    rows.sort(key=lambda row: row[2])
    whole = batch_of([("x", 0, 99, 1, Decimal(1))] * cut + rows).slice(cut)  # its buffers begin elsewhere
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PENDING_ROWS_MAX", pending)
        found = running_sums(whole, 2, SIZE, ends)
        assert found is not None
        batches = list(found)
    assert all(batch.schema == SCHEMA for batch in batches)
    made = pa.Table.from_batches(batches)
    starts = made["$slice"].cast(pa.int64()).to_pylist()
    assert starts == sorted(starts)
    got = zip(made["key"].to_pylist(), made["sub"].to_pylist(), starts, strict=True)
    places = list(got)
    assert max(Counter(places).values()) == 1
    sums = zip(made["n"].to_pylist(), made["amount"].to_pylist(), strict=True)
    assert dict(zip(places, map(list, sums), strict=True)) == expected


def test_sums_of_no_key_are_of_all_rows() -> None:
    schema = pa.schema([*SCHEMA][2:])
    rows = batch_of([(0, 1, Decimal("0.01")), (3, 2, Decimal("-5"))], schema)
    found = running_sums(rows, 0, SIZE, [1, 4, 7])
    assert found is not None
    assert [(row["n"], row["amount"]) for batch in found for row in batch.to_pylist()] == [
        (1, Decimal("0.01")),
        (3, Decimal("-4.99")),
        (2, Decimal("-5")),
    ]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [0.1, 0.2]),
        (pa.uint64(), [1, 2]),
        (pa.int64(), [1, None]),
        (pa.int64(), [2**62, 1]),
        (pa.int64(), [-(2**63), 1]),
        (KIND, [Decimal("1.00"), None]),
        (KIND, [Decimal("9999999999.99"), Decimal("1.00")]),
        (pa.decimal128(38, 0), [Decimal(2) ** 63, Decimal(1)]),
        (pa.decimal128(38, 0), [Decimal(1), Decimal(-(2**63)) - 1]),
        (pa.decimal128(38, 0), [Decimal(2) ** 64, Decimal(1)]),
    ],
)
def test_what_may_not_be_exact_so_is_left_to_others(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema({"$slice": pa.timestamp("us"), "sum": kind})
    assert running_sums(batch_of([*enumerate(values)], schema), 0, SIZE, [1, 2]) is None
