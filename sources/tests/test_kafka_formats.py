"""CSV, strings, inferred schemas, and one bad value among many. No server."""

from __future__ import annotations

import csv as stdlib_csv
import datetime as dt
import io
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import ConfigError
from onefold.core.values.ddl import column_names, ddl_of
from onefold.sources.formats.csv import CsvParser, check
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import BadValue, TooManyBad, Unparsable, separate
from onefold.sources.kafka.bad_records import bad_batch
from onefold.sources.kafka.fetching.fetched_records import WantedFields
from onefold.sources.kafka.formats.dispatch import TextParser
from onefold.sources.kafka.formats.inferring import infer
from onefold.sources.kafka.formats.record_columns import RAW_COLUMNS

PAIR = pa.schema({"a": pa.int64(), "b": pa.string()})


def rows(parser: Any, values: Sequence[bytes | None], bad_max: int = 0) -> list[dict[str, Any]]:
    return [row for batch in separate(values, parser, bad_max).rows for row in batch.to_pylist()]


def why(parser: Any, value: bytes | None) -> str:
    with pytest.raises(TooManyBad) as caught:
        separate([value], parser, 0)
    return caught.value.last.reason


def test_fields_in_quotes_may_hold_the_delimiter_and_quotes_and_an_empty_one_is_no_null() -> None:
    values = [b"1,x", b'2,"a,""b"""', b"3,", b'4,""', b",\r\n", b'5," y"\n']
    assert [tuple(row.values()) for row in rows(CsvParser(PAIR, ","), values)] == [
        (1, "x"),
        (2, 'a,"b"'),
        (3, None),
        (4, ""),
        (None, None),
        (5, " y"),
    ]
    assert rows(CsvParser(PAIR, ";"), [b"1;a,b"]) == [{"a": 1, "b": "a,b"}]


def test_an_empty_csv_value_is_one_empty_field_and_no_line_of_several() -> None:
    for value in (b"", b"\n", b"\r\n"):
        assert why(CsvParser(PAIR, ","), value) == "the value is empty, and the schema has 2 fields"
        assert rows(CsvParser(pa.schema({"a": pa.string()}), ","), [value]) == [{"a": None}]
    found = separate([b"1,x", b"", b"2,y"], CsvParser(PAIR, ","), 1)
    assert [bad.index for bad in found.bad] == [1]


def test_a_csv_number_that_is_too_large_is_bad_and_an_infinity_that_is_written_as_one_is_none() -> None:
    parser = CsvParser(pa.schema({"a": pa.float64(), "b": pa.float32()}), ",")
    assert rows(parser, [b"inf,-inf", b"1.5,"]) == [{"a": math.inf, "b": -math.inf}, {"a": 1.5, "b": None}]
    found = separate([b"1,1", b"inf,1", b"-1e400,1", b"2,1e39"], parser, 2)
    assert [(bad.index, bad.reason) for bad in found.bad] == [
        (2, "the field 'a' has a number that is too large for its type (double)"),
        (3, "the field 'b' has a number that is too large for its type (float)"),
    ]


def test_csv_types_are_exact() -> None:
    schema = pa.schema(
        {"d": pa.decimal128(38, 2), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"), "c": pa.date32()}
    )
    value = b"123456789012345678901234567890123456.78,2026-01-01T02:00:00.123456+02:00,2026-01-01 00:00:00,2026-02-28"
    (row,) = rows(CsvParser(schema, ","), [value])
    assert row == {
        "d": Decimal("123456789012345678901234567890123456.78"),
        "t": dt.datetime(2026, 1, 1, 0, 0, 0, 123456, dt.UTC),
        "n": dt.datetime(2026, 1, 1),
        "c": dt.date(2026, 2, 28),
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"1", "Expected 2 columns, got 1"),
        (b"1,2,3", "Expected 2 columns, got 3"),
        (b"9223372036854775808,x", "9223372036854775808"),
        (b"1.0,x", "1.0"),
        (b"1,\xff", "UTF8"),
        (b"1,a\nb", "line break"),
        (b"1,a\r2,b", "line break"),
        (b'1,"x', "quote stays open"),
    ],
)
@pytest.mark.parametrize("at", [0, 5, 19])
def test_a_bad_line_costs_itself_alone(value: bytes | None, reason: str, at: int) -> None:
    values: list[bytes | None] = [b"%d,x" % i for i in range(20)]
    values[at] = value
    found = separate(values, CsvParser(PAIR, ","), 1)
    assert [bad.index for bad in found.bad] == [at]
    assert reason in found.bad[0].reason
    assert "Row #" not in found.bad[0].reason
    assert [n for batch in found.rows for n in batch.column("a").to_pylist()] == [i for i in range(20) if i != at]


FIELDS = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=6)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), FIELDS), min_size=1, max_size=6))
def test_what_another_writer_wrote_comes_back(pairs: list[tuple[int, str]]) -> None:
    values = []
    for pair in pairs:
        line = io.StringIO()
        stdlib_csv.writer(line, quoting=stdlib_csv.QUOTE_NONNUMERIC).writerow(pair)
        values.append(line.getvalue().encode())
    assert [tuple(row.values()) for row in rows(CsvParser(PAIR, ","), values)] == pairs


@given(
    st.lists(
        st.sampled_from([b"1,x", b'1,"x', b'1,x"', b'1,"x"', b'1,"', b'"', b",", b'1,x"y', b'1,a"b,"c']), max_size=8
    )
)
def test_lines_with_odd_quotes_never_take_their_neighbours_along(values: list[bytes]) -> None:
    found = separate(values, CsvParser(PAIR, ","), 100)
    alone = [separate([value], CsvParser(PAIR, ","), 1) for value in values]
    assert [bad.index for bad in found.bad] == [index for index, one in enumerate(alone) if one.bad]
    assert [row for part in found.rows for row in part.to_pylist()] == [
        row for one in alone for part in one.rows for row in part.to_pylist()
    ]


def test_a_byte_order_mark_belongs_to_its_value_wherever_the_batch_was_cut() -> None:
    texts, numbers = (CsvParser(pa.schema({"a": kind}), ",") for kind in (pa.string(), pa.int64()))
    for values in (["\ufeff1", "2"], ["2", "\ufeff1"]):
        raw = [value.encode() for value in values]
        assert texts.parse(raw).column("a").to_pylist() == values
        assert [raw[each.index] for each in separate(raw, numbers, 1).bad] == ["\ufeff1".encode()]


def test_nested_types_are_refused_by_name() -> None:
    with raises(ConfigError, "type-unsupported", "'odd'"):
        check(pa.schema({"odd": pa.list_(pa.int64())}))


def test_texts_are_utf8_or_refused_and_nulls_stay_null() -> None:
    schema = pa.schema({"value": pa.string()})
    assert [row["value"] for row in rows(TextParser(schema), ["é".encode(), None, b""])] == ["é", None, ""]
    assert "not UTF-8: invalid start byte at byte 1" in why(TextParser(schema), b"a\xff")


def test_many_bad_values_among_good_ones_are_all_found_with_their_reasons() -> None:
    values = [
        b'{"a":"x"}' if i % 7 == 3 else b'{"a":99999999999999999999}' if i % 11 == 5 else b'{"a":%d}' % i
        for i in range(500)
    ]
    found = separate(values, JsonParser(pa.schema({"a": pa.int64()})), 500)
    wrong = [i for i in range(500) if i % 7 == 3 or i % 11 == 5]
    assert [bad.index for bad in found.bad] == wrong
    assert all(("string" if bad.index % 7 == 3 else "99999") in bad.reason for bad in found.bad)
    assert [n for batch in found.rows for n in batch.column("a").to_pylist()] == [
        i for i in range(500) if i not in wrong
    ]


def test_the_first_one_too_many_is_named() -> None:
    with pytest.raises(TooManyBad) as caught:
        separate([b"{}", b"x", b"{}", b"y", b"z"], JsonParser(pa.schema({"a": pa.int64()})), 1)
    assert caught.value.last.index == 3


def test_a_schema_is_inferred_from_what_all_records_have_and_printed_as_ddl() -> None:
    found = infer(
        [
            b'{"id":1,"at":"2026-01-01","x":1,"big":18446744073709551616,"no":null,"ok":true}',
            b"not json",
            b"[" * 100_000,
            None,
            b'{"id":2,"x":1.5,"late":[{"q":null},{"q":"y","a b":2}],"s":{"n":9007199254740993}}',
        ]
    )
    assert ddl_of(found) == (
        "id bigint, at string, x double, big decimal(38,0), no string, ok boolean, "
        "late array<struct<q: string, `a b`: bigint>>, s struct<n: bigint>"
    )
    assert column_names(ddl_of(found)) == ["id", "at", "x", "big", "no", "ok", "late", "s"]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([], "schema-not-inferred"),
        ([b"5", b"x"], "schema-not-inferred"),
        ([b'{"s":{"a":1}}', b'{"s":{"a":"x"}}'], "schema-not-inferred"),
        ([b'{"s":[1]}', b'{"s":{}}'], "schema-not-inferred"),
        ([b'{"s":{}}'], "schema-not-inferred"),
    ],
)
def test_what_no_schema_fits_is_refused(values: list[bytes], code: str) -> None:
    with raises(ConfigError, code):
        infer(values)


RECORDS = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.lists(st.integers(0, 9), max_size=2),
    min_size=1,
    max_size=3,
)


@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_records_can_be_read_as_the_schema_that_was_inferred_from_them(records: list[dict[str, Any]]) -> None:
    import json

    values = [json.dumps(record).encode() for record in records]
    try:
        schema = infer(values)
    except ConfigError:
        return
    assert rows(JsonParser(schema), values) == [{name: record.get(name) for name in schema.names} for record in records]


class Held:
    """Records that are there already."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.too_large: dict[int, int | None] = {}

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def values(self) -> list[bytes | None]:
        return list(self.batch.column("value").to_pylist())

    def column(self, field: pa.Field) -> pa.Array:
        return self.batch.column(field.name)


def test_a_bad_record_is_kept_byte_by_byte_with_a_reason_that_any_destination_takes() -> None:
    rows = [{"topic": "t", "partition": 1, "offset": n, "key": b"k", "value": b"x\x00%d" % n} for n in range(3)]
    records = Held(pa.RecordBatch.from_pylist(rows, schema=RAW_COLUMNS))
    bad = [BadValue(n, Unparsable(0, reason).reason) for n, reason in ((0, "quotes a \0 and \udcff"), (2, "z" * 5000))]
    first, last = bad_batch(records, bad, WantedFields(key=True)).to_pylist()
    assert (first["source_offset"], first["key"], first["value"]) == (0, b"k", b"x\x000")
    assert first["reason"] == r"quotes a \x00 and \udcff"
    assert (last["source_offset"], last["headers"], len(last["reason"])) == (2, None, 1003)
