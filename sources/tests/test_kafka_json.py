"""Values parsed as Arrow: exact, each exactly once or refused with its reason. No server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import ConfigError
from onefold.sources.formats import json
from onefold.sources.formats.values import BadValue, TooManyBad, separate

UTC = dt.UTC


def parse(values: Sequence[bytes | None], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(separate(values, json.JsonParser(schema), 0).rows)


def first_bad(values: Sequence[bytes | None], schema: pa.Schema) -> BadValue:
    with pytest.raises(TooManyBad) as caught:
        parse(values, schema)
    return caught.value.last


def column(kind: pa.DataType, *texts: str) -> list[object]:
    values = [f'{{"a":{text}}}'.encode() for text in texts]
    found: list[object] = parse(values, pa.schema({"a": kind})).column(0).to_pylist()
    return found


def refused(kind: pa.DataType, text: str) -> str:
    with pytest.raises(TooManyBad) as caught:
        column(kind, text)
    return caught.value.last.reason


def test_a_number_that_is_too_large_for_a_float_is_bad_and_no_infinity() -> None:
    assert column(pa.float64(), "1.7e308", "-0.5", "1e-400") == [1.7e308, -0.5, 0.0]
    for kind, text in (
        (pa.float64(), "1e400"),
        (pa.float64(), "-1e400"),
        (pa.float32(), "1e39"),
        (pa.list_(pa.float32()), "[1.5,1e39]"),
        (pa.struct({"b": pa.float32()}), '{"b":-1e39}'),
    ):
        assert "too large for its type" in refused(kind, text) or "too big" in refused(kind, text), text
    found = separate([b'{"a":1}', b'{"a":1e39}', b'{"a":2}'], json.JsonParser(pa.schema({"a": pa.float32()})), 1)
    assert pa.Table.from_batches(found.rows).column(0).to_pylist() == [1.0, 2.0] and found.bad[0].index == 1


def test_integers_and_decimals_are_exact_beyond_what_a_double_holds() -> None:
    assert column(pa.int64(), "9007199254740993", "-9223372036854775808") == [9007199254740993, -(2**63)]
    wide = pa.decimal128(38, 9)
    assert column(wide, "12345678901234567890123456789.123456789", '"0.000000001"') == [
        Decimal("12345678901234567890123456789.123456789"),
        Decimal("0.000000001"),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (pa.int64(), "9223372036854775808", "couldn't parse:9223372036854775808"),
        (pa.int64(), "1.0", "1.0"),
        (pa.int8(), "300", "couldn't parse:300"),
        (pa.int64(), '"1"', "field 'a' (bigint): a is a JSON string, not a number"),
        (pa.string(), "1", "a is a JSON number, not a string"),
        (pa.decimal128(10, 2), "1.005", "1.005 requires scale 3"),
        (pa.decimal128(5, 2), "123456789.5", "precision"),
        (pa.float64(), '"NaN"', "a is a JSON string, not a number"),
        (pa.date32(), '"2026-11-31"', "2026-11-31"),
        (pa.timestamp("us", "UTC"), '"2026-11-21T02:33:00.123456789Z"', "123456789Z"),
        (pa.timestamp("us"), '"2026-11-21T02:33:00Z"', "expected no zone offset"),
        (pa.timestamp("us", "UTC"), '"0000-12-31"', "the years 1 to 9999"),
        (pa.timestamp("us", "UTC"), '"9999-12-31T23:59:59-01:00"', "the years 1 to 9999"),
        (pa.timestamp("us"), '"0000-12-31"', "the years 1 to 9999"),
        (pa.date32(), '"0000-12-31"', "the years 1 to 9999"),
        (pa.list_(pa.date32()), '["0001-01-01", "0000-12-31"]', "the years 1 to 9999"),
        (pa.binary(), '"not base64!"', "not base64"),
        (pa.int64(), "1}{", "2 JSON objects in one value"),
    ],
)
def test_what_would_lose_digits_zones_or_types_is_refused(kind: pa.DataType, text: str, reason: str) -> None:
    assert reason in refused(kind, text)


def test_timestamps_keep_their_microseconds_and_their_instant() -> None:
    zoned = pa.timestamp("us", "UTC")
    at = dt.datetime(2026, 11, 21, 0, 33, 0, 123456, tzinfo=UTC)
    assert column(
        zoned, '"2026-11-21T02:33:00.123456+02:00"', '"2026-11-21T00:33:00.123456Z"', '"2026-11-21 00:33:00.123456"'
    ) == [at, at, at]
    assert column(pa.timestamp("us"), '"2026-11-21T02:33:00.123456"') == [dt.datetime(2026, 11, 21, 2, 33, 0, 123456)]


def test_dates_binaries_structs_and_lists_are_read() -> None:
    assert column(pa.date32(), '"2026-02-28"', "null") == [dt.date(2026, 2, 28), None]
    assert column(pa.binary(), '"AAH/"') == [b"\x00\x01\xff"]
    nested = pa.struct({"d": pa.date32(), "n": pa.list_(pa.timestamp("us")), "x": pa.decimal128(5, 2)})
    assert column(nested, '{"d":"2026-02-28","n":["2026-01-01T00:00:00",null],"x":1.25}', "null") == [
        {"d": dt.date(2026, 2, 28), "n": [dt.datetime(2026, 1, 1), None], "x": Decimal("1.25")},
        None,
    ]


def test_missing_fields_are_null_and_unknown_ones_are_passed_over() -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    rows = parse([b'{"a":1,"z":[1,{"q":2}]}', b"{}", b'{"b":"x"}'], schema).to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": None, "b": "x"}]


def test_a_field_that_may_not_be_null_is_refused_when_missing() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    bad = first_bad([b'{"a":1}', b"{}"], schema)
    assert bad.index == 1
    assert "NOT NULL" in bad.reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "empty"),
        (b"  ", "empty"),
        (b"[1]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b'{"a":1}{"a":2}', "2 JSON objects in one value"),
        (b'{"a":1}\n{"a":2}', "2 JSON objects in one value"),
        (b'{"a":', "not a JSON object"),
        (b'{"a":{"b":1}', "a"),
        (b'{"a":1,"a":2}', "twice"),
        (b'{"s":"\xff"}', "UTF-8"),
        (b'{"s":"x\ny"}', "encoding in string"),
    ],
)
@pytest.mark.parametrize("at", [0, 7, 19])
def test_the_first_bad_value_is_named_with_its_reason(value: bytes | None, reason: str, at: int) -> None:
    values: list[bytes | None] = [b'{"a":%d}' % i for i in range(20)]
    values[at] = value
    values.append(b"also bad")
    bad = first_bad(values, pa.schema({"a": pa.int64()}))
    assert bad.index == at
    assert reason in bad.reason
    assert " in row " not in bad.reason


def test_values_that_would_balance_each_other_are_not_taken_for_rows() -> None:
    # One value holds half an object, the next the other half, a third two objects: three rows in all.
    values = [b'{"a":', b"1}", b'{"a":2}\n{"a":3}']
    bad = first_bad(values, pa.schema({"a": pa.int64()}))
    assert bad.index == 0


def test_values_with_line_breaks_and_blanks_around_them_are_read() -> None:
    values = [b'\n{\n "a": 1\n}\n', b' {"a":2} ', b'{"a":3}', b'{"x":{}\n,"a":4}']
    assert parse(values, pa.schema({"a": pa.int64()})).column(0).to_pylist() == [1, 2, 3, 4]


@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1).map(lambda n: (b'{"a":%d}' % n, n)),
            st.sampled_from(
                [b"{", b"}", b"{}", b"{}{}", b"{}\n{}", b'{"a":1}}', b"", b"null", b'{"a":[{}', b'"}\n{"']
            ).map(lambda v: (v, None)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_mixture_of_values_gives_one_row_for_each_or_names_the_first_bad_one(
    mixture: list[tuple[bytes, int | None]],
) -> None:
    wrong = [i for i, (value, n) in enumerate(mixture) if n is None and value != b"{}"]
    values = [value for value, _ in mixture]
    schema = pa.schema({"a": pa.int64()})
    if not wrong:
        assert parse(values, schema).column(0).to_pylist() == [n for _, n in mixture]
        return
    bad = first_bad(values, schema)
    assert bad.index == wrong[0]


@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.int64()), pa.duration("us"), pa.list_(pa.binary()), pa.null()]
)
def test_types_that_cannot_be_parsed_exactly_are_refused_by_name(kind: pa.DataType) -> None:
    with raises(ConfigError, "type-unsupported", "'odd'"):
        json.check(pa.schema({"a": pa.int64(), "odd": kind}))
