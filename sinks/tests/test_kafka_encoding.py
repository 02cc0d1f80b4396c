"""Rows as Kafka records: every value comes back from our own source exactly as it was."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks.kafka.encoding import ROWS_MAX, EncodedRecords, RecordEncoding
from onefold.sources.formats.json import JsonParser

JSON = RecordEncoding("json")
INSTANT = dt.datetime(2026, 11, 21, 13, 59, 59, 123456)


def one(encoding: RecordEncoding, batch: pa.RecordBatch) -> EncodedRecords:
    encoding.check_settings()
    encoding.check(batch.schema)
    (records,) = encoding.records(batch)
    return records


EXACT = {
    "int64": pa.array([2**63 - 1, -(2**63), 2**53 + 1, None], pa.int64()),
    "int8": pa.array([-128, 127, 0, None], pa.int8()),
    "decimal": pa.array([Decimal("12345678901234567890123456.789012345678"), Decimal("-0.000000000001"), None]),
    "small decimal": pa.array([Decimal("0.10"), Decimal("99999.99"), None], pa.decimal128(7, 2)),
    "double": pa.array([0.1, 1e300, 5e-324, -0.0, 123456789.125, None], pa.float64()),
    "float": pa.array([0.1, 3.4e38, None], pa.float32()),
    "boolean": pa.array([True, False, None]),
    "text": pa.array(['"', "\\", "\n\t\r\x00\x1f", "naïve ☃ 𝄞", "\u2028", "", "}\n{", None]),
    "large text": pa.array(["x", None], pa.large_string()),
    "instant": pa.array([INSTANT, dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us", "UTC")),
    "local time": pa.array([INSTANT, dt.datetime(1, 1, 1), None], pa.timestamp("us")),
    "date": pa.array([dt.date(2026, 11, 21), dt.date(1, 1, 1), None]),
    "binary": pa.array([b"\x00\xff", b"", None], pa.binary()),
    "list": pa.array([[1, None, 3], [], None], pa.list_(pa.int64())),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None]),
    "nested": pa.array([[{"a": [Decimal("1.10")], "t": INSTANT}], [None], None]),
}


@pytest.mark.parametrize("name", EXACT)
def test_json_comes_back_exactly_from_our_own_source(name: str) -> None:
    batch = pa.record_batch({"value": EXACT[name], "other": pa.array(range(len(EXACT[name])))})
    records = one(JSON, batch)
    for value in records.values:
        assert value is not None and json.loads(value).keys() == {"value", "other"}
    assert JsonParser(batch.schema).parse(records.values).equals(batch)


def test_other_types_become_the_json_that_people_expect() -> None:
    batch = pa.record_batch(
        {
            "map": pa.array([[('k"', 1), ("l", None)]], pa.map_(pa.string(), pa.int64())),
            "dictionary": pa.array(["a"]).dictionary_encode(),
            "berlin": pa.array([INSTANT], pa.timestamp("us", "Europe/Berlin")),
            "seconds": pa.array([0], pa.timestamp("s")),
            "time": pa.array([dt.time(1, 2, 3)]),
            "nothing": pa.nulls(1),
            "fixed": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        }
    )
    assert one(JSON, batch).values == [
        b'{"map":{"k\\"":1,"l":null},"dictionary":"a","berlin":"2026-11-21T13:59:59.123456Z",'
        b'"seconds":"1970-01-01T00:00:00","time":"01:02:03.000000","nothing":null,"fixed":[1,2]}'
    ]


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_slice_of_a_batch_is_encoded_as_what_it_shows(offset: int) -> None:
    whole = pa.record_batch(
        {
            "list": pa.array([[1], None, [], [2, 3]], pa.list_(pa.int64())),
            "map": pa.array([[("a", 1)], [], None, [("b", 2)]], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array([{"x": "1"}, None, {"x": None}, {"x": "4"}]),
        }
    )
    rows = [json.loads(value or b"") for value in one(JSON, whole.slice(offset)).values]
    assert (
        rows
        == [
            {"list": [1], "map": {"a": 1}, "struct": {"x": "1"}},
            {"list": None, "map": {}, "struct": None},
            {"list": [], "map": None, "struct": {"x": None}},
            {"list": [2, 3], "map": {"b": 2}, "struct": {"x": "4"}},
        ][offset:]
    )


def test_a_large_batch_comes_in_parts_and_in_order() -> None:
    batch = pa.record_batch({"id": pa.array(range(2 * ROWS_MAX + 1))})
    parts = list(JSON.records(batch))
    assert [len(part.values) for part in parts] == [ROWS_MAX, ROWS_MAX, 1]
    assert JsonParser(batch.schema).parse([value for part in parts for value in part.values]).equals(batch)


def test_keys_and_headers_have_the_text_or_the_bytes_of_their_columns() -> None:
    batch = pa.record_batch(
        {
            "id": pa.array([7, None], pa.int64()),
            "name": ["ä", None],
            "raw": pa.array([b"\xff", None], pa.binary()),
            "at": pa.array([INSTANT, None], pa.timestamp("us", "UTC")),
        }
    )
    assert one(RecordEncoding("json", ("id",)), batch).keys == [b"7", None]
    assert one(RecordEncoding("json", ("name",)), batch).keys == ["ä".encode(), None]
    assert one(RecordEncoding("json", ("raw",)), batch).keys == [b"\xff", None]
    assert one(RecordEncoding("json", ("name", "id")), batch).keys == [
        '{"name":"ä","id":7}'.encode(),
        b'{"name":null,"id":null}',
    ]
    records = one(RecordEncoding("json", ("id",), ("raw", "at")), batch)
    assert records.headers == [
        [("raw", b"\xff"), ("at", b"2026-11-21T13:59:59.123456Z")],
        [("raw", None), ("at", None)],
    ]
    assert records.values == ['{"id":7,"name":"ä"}'.encode(), b'{"id":null,"name":null}']


def test_raw_rows_bring_every_part_of_a_record() -> None:
    batch = pa.record_batch(
        {
            "value": pa.array([b"v", None], pa.binary()),
            "key": ["k", None],
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
                pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
            ),
            "partition": pa.array([3, None], pa.int32()),
            "timestamp": pa.array([dt.datetime(1970, 1, 1, 0, 0, 1, 2999), None], pa.timestamp("us", "UTC")),
        }
    )
    assert one(RecordEncoding("raw"), batch) == EncodedRecords(
        [b"v", None], [b"k", None], [[("h", b"1"), ("h", None)], None], [3, -1], [1002, 0]
    )
    assert one(RecordEncoding("raw"), batch.select(["value"])) == EncodedRecords([b"v", None])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("at", [0, -1])
def test_a_raw_timestamp_that_kafkas_client_would_change_is_a_bad_record(unit: str, zone: str | None, at: int) -> None:
    if unit == "s" and at == -1:
        return  # a second before 1970 is -1000 ms, which arrives
    per_ms = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    times = pa.array([None, 7 * per_ms, at * per_ms, 8 * per_ms]).cast(pa.timestamp(unit, zone))
    batch = pa.record_batch({"value": [b""] * 4, "timestamp": times})
    with raises(BadRecord, "timestamp-reserved"):
        [*RecordEncoding("raw").records(batch)]
    assert one(RecordEncoding("raw"), batch.slice(0, 2)).timestamps == [0, 7000 if unit == "s" else 7]


def test_a_raw_timestamp_beyond_what_kafka_can_hold_is_a_bad_record() -> None:
    batch = pa.record_batch({"value": [b""], "timestamp": pa.array([2**62]).cast(pa.timestamp("s"))})
    with pytest.raises(BadRecord):
        [*RecordEncoding("raw").records(batch)]


@pytest.mark.parametrize("number", [-1, -2, -(2**31), 2**31])
def test_a_raw_partition_that_is_none_is_a_bad_record(number: int) -> None:
    batch = pa.record_batch({"value": [b"", b""], "partition": pa.array([None, number], pa.int64())})
    with pytest.raises(BadRecord):
        [*RecordEncoding("raw").records(batch)]


def test_raw_rows_may_have_columns_that_become_headers_behind_their_own() -> None:
    own = pa.array(
        [[{"key": "h", "value": b"1"}], None], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    batch = pa.record_batch({"value": pa.array([b"v", None], pa.binary()), "headers": own, "epoch": [7, None]})
    encoding = RecordEncoding("raw", headers=("epoch",))
    encoding.check(batch.schema)
    assert one(encoding, batch).headers == [[("h", b"1"), ("epoch", b"7")], [("epoch", None)]]
    assert one(encoding, batch.select(["value", "epoch"])).headers == [[("epoch", b"7")], [("epoch", None)]]
    with raises(ConfigError, "options-conflict", "'key'"):
        RecordEncoding("raw", headers=("key",)).check_settings()
    with raises(SchemaMismatch, "column-without-place", "'epoch'"):
        RecordEncoding("raw").check(batch.schema)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_word_for_is_refused_with_the_columns_name(value: float) -> None:
    batch = pa.record_batch({"id": [1, 2], "ratio": [0.5, value]})
    with raises(BadRecord, "value-not-encodable", "'ratio'"):
        one(JSON, batch)


@pytest.mark.parametrize(
    ("encoding", "schema", "code"),
    [
        (RecordEncoding("json", ("nope",)), {"id": pa.int64()}, "column-missing"),
        (RecordEncoding("json", (), ("id",)), {"id": pa.int64()}, "no-value-column"),
        (
            RecordEncoding("json", (), ("l",)),
            {"id": pa.int64(), "l": pa.list_(pa.int64())},
            "column-type",
        ),
        (JSON, {"d": pa.duration("s")}, "column-type"),
        (JSON, {"m": pa.map_(pa.int64(), pa.int64())}, "column-type"),
        (RecordEncoding("raw"), {"id": pa.int64()}, "column-missing"),
        (RecordEncoding("raw"), {"value": pa.int64()}, "column-type"),
        (RecordEncoding("raw"), {"value": pa.binary(), "topic": pa.string()}, "column-without-place"),
    ],
)
def test_rows_that_cannot_be_records_are_refused_before_any_is_written(
    encoding: RecordEncoding, schema: dict[str, pa.DataType], code: str
) -> None:
    with raises(SchemaMismatch, code):
        encoding.check(pa.schema(schema))


def test_two_columns_of_one_name_are_refused() -> None:
    with raises(SchemaMismatch, "column-twice"):
        JSON.check(pa.schema([("id", pa.int64()), ("id", pa.int64())]))


@pytest.mark.parametrize(
    "encoding",
    [
        RecordEncoding("raw", ("id",)),
        RecordEncoding("json", ("id", "id")),
        RecordEncoding("json", ("",)),
    ],
)
def test_settings_that_make_no_sense_with_any_rows_are_refused(encoding: RecordEncoding) -> None:
    with pytest.raises(ConfigError):
        encoding.check_settings()
