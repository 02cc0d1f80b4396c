"""Which records of a batch some rows come from. Asks neither Spark nor a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onefold.spark.verify.comparing.sides import Places
from onefold.spark.verify.locating import _finding
from onefold.spark.verify.origin import POSITION

RECORDS = pa.record_batch(
    {"id": pa.array(range(100), pa.int64()), POSITION[0]: ["t"] * 100, POSITION[1]: [0] * 100, POSITION[2]: range(100)}
)
Change = Callable[[pa.RecordBatch], pa.RecordBatch]


def places(change: Change, wanted: pa.Table) -> list[int]:
    def applied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(change, batches)

    fields = [RECORDS.schema.field(name) for name in POSITION]
    find = _finding(applied, wanted, pa.schema([*fields, *wanted.schema]))
    return sorted(offset for found in find(iter([RECORDS])) for offset in found.column(2).to_pylist())


def fails_on_parts(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert batch.num_rows > 3
    return batch


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array([row for row in range(batch.num_rows) for _ in range(2)]))


def without_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0))


def test_records_of_rows_that_are_filtered_multiplied_or_of_a_function_that_takes_no_parts() -> None:
    wanted = pa.table({"id": pa.array([7, 8, 90], pa.int64())})
    assert places(lambda batch: batch, wanted) == [7, 8, 90]
    assert places(without_odd, wanted) == [8, 90]
    assert places(twice, wanted) == [7, 7, 8, 8, 90, 90]
    assert places(fails_on_parts, wanted) == []


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.binary(), pa.string()])
def test_keys_of_all_kinds(kind: pa.DataType) -> None:
    def keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pa.types.is_timestamp(kind):  # after the year 9999 too
            return batch.set_column(0, "id", pc.add(pc.multiply(batch.column(0), 10**16), 0).cast(kind))
        return batch.set_column(0, "id", batch.column(0).cast(pa.string()).cast(kind))

    wanted = pa.table([keyed(RECORDS.slice(17, 1)).column(0), [3]], names=["id", "n"])
    assert places(keyed, wanted.select(["id"])) == [17]


def test_the_first_places_are_named_and_how_many_more_as_far_as_that_is_known() -> None:
    rows = [("t", 1, offset) for offset in (10, 9, 100, 11)]
    assert str(Places(sorted(rows))) == "from t/1 at offset 9, t/1 at offset 10, t/1 at offset 11 and 1 more"
    assert str(Places(sorted(rows), is_cut=True)) == "from t/1 at offset 9, t/1 at offset 10, t/1 at offset 11 and more"
    assert str(Places(rows[:1], is_cut=True)) == "from t/1 at offset 10"
