"""What becomes of the records that Spark's own Kafka connector has read, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest

from onefold.core.errors import BadRecord
from onefold.sources import KafkaSource
from onefold.sources.formats.bad_values import Unparsable
from onefold.sources.kafka import RAW_COLUMNS, reading
from onefold.sources.kafka.fetching.records import Wanted
from onefold.spark.formats.jvm_reader import _Parse, _SparksRecords

SCHEMA = pa.schema({"id": pa.int64()})


class LaterMaybe:
    """As Avro, whose registry does not have the schema of the value `b"new"` yet."""

    def parse(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        if b"new" in values:
            raise Unparsable(list(values).index(b"new"), "the registry has no such schema", is_permanent=False)
        return pa.RecordBatch.from_pylist([{"id": index} for index in range(len(values))], SCHEMA)

    def explain(self, value: bytes | None) -> Unparsable:
        assert value == b"new"
        return Unparsable(0, "the registry has no such schema", is_permanent=False)


@pytest.mark.parametrize("on_error", ["dead_letter", "skip"])
def test_a_record_that_may_be_good_by_the_second_reading_is_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch, on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "parser_of", lambda *_: LaterMaybe())
    source = KafkaSource(
        "orders", bootstrap_servers="localhost:9092", format="json", schema="id long", on_error=on_error, reader="spark"
    )
    records = [{"topic": "orders", "partition": 0, "offset": 7 + i, "value": v} for i, v in enumerate([b"old", b"new"])]
    parse = pickle.loads(pickle.dumps(_Parse(source, SCHEMA)))
    parsed = parse(iter([pa.RecordBatch.from_pylist(records, RAW_COLUMNS)]))
    if on_error == "dead_letter":
        with pytest.raises(
            BadRecord, match=r"orders/0 offset 8: the registry has no such schema\. It may be good another time"
        ):
            list(parsed)
    else:
        assert [rows.num_rows for rows in parsed] == [1]
        assert "orders/0 [7, 9): unreadable records, skipped: 1" in caplog.text


def test_what_spark_has_read_is_measured_as_our_own_reader_measures_it() -> None:
    rows = [
        {"key": b"12", "value": b"345", "headers": [{"key": "h", "value": b"67"}, {"key": "", "value": None}]},
        {"key": None, "value": None, "headers": []},
        {"key": b"k" * 9, "value": b"v", "headers": [{"key": "n", "value": None}]},
    ]
    schema = pa.schema([RAW_COLUMNS.field(name) for name in ("key", "value", "headers")])
    batch = pa.RecordBatch.from_pylist([{}, *rows], schema=schema).slice(1)
    for names, sizes in (("value",), (3, 0, 1)), (("key", "value"), (5, 0, 10)), (("key", "headers"), (40, 0, 27)):
        found = _SparksRecords(batch, Wanted.of(names, record_bytes_max=2)).too_large
        assert found == {index: size for index, size in enumerate(sizes) if size > 2}
