"""JSON texts of Arrow columns, against a plain Python reference."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import zoneinfo
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core.values import json_encoder

UTC = dt.UTC
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def nullable_texts(array: Any) -> Any:
    return json_encoder.nullable_texts(array, "quote")


def reference(value: Any, kind: pa.DataType) -> Any:
    """What json.loads(nullable_texts(...)) should give for one value."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: reference(value[f.name], f.type) for f in kind}
    if pa.types.is_map(kind):
        return {_key(k, kind.key_type): reference(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [reference(v, kind.value_type) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, dt.time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, dt.timedelta):
        micros = value // dt.timedelta(microseconds=1)
        return f"{'-' if micros < 0 else ''}PT{abs(micros) // 10**6}.{abs(micros) % 10**6:06d}S"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float | decimal.Decimal):
        return decimal.Decimal(str(value))
    return value


def _key(value: Any, kind: pa.DataType) -> str:
    plain = reference(value, kind)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return plain if isinstance(plain, str) else str(plain)


SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats().filter(lambda x: abs(x) < 1e300 or not math.isfinite(x))),
    (pa.decimal128(38, 18), st.decimals(min_value=-(10**19), max_value=10**19, places=18)),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=7)),
    (pa.date32(), st.dates(min_value=dt.date(1, 1, 1))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (
        pa.timestamp("us", "America/New_York"),
        st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2037, 1, 1)).map(
            lambda t: t.replace(tzinfo=UTC).astimezone(zoneinfo.ZoneInfo("America/New_York"))
        ),
    ),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6))),
    (pa.null(), st.none()),
]
KEYS = [(k, s) for k, s in SCALARS if k in (pa.string(), pa.int64(), pa.date32(), pa.bool_())]


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    shape = draw(st.sampled_from(["scalar", "struct", "list", "map", "large_list"] if depth else ["scalar"]))
    if shape == "scalar":
        return draw(st.sampled_from(SCALARS))
    if shape in ("list", "large_list"):
        kind, values = draw(typed(depth=depth - 1))
        made = pa.list_(kind) if shape == "list" else pa.large_list(kind)
        return made, st.lists(st.none() | values, max_size=3)
    if shape == "map":
        key, keys = draw(st.sampled_from(KEYS))
        item, items = draw(typed(depth=depth - 1))
        pairs = st.lists(st.tuples(keys, st.none() | items), max_size=3, unique_by=lambda pair: pair[0])
        return pa.map_(key, item), pairs
    fields = draw(st.lists(st.tuples(TEXT, typed(depth=depth - 1)), max_size=3, unique_by=lambda f: f[0]))
    struct = pa.struct([(name, kind) for name, (kind, _) in fields])
    return struct, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in fields})


@settings(max_examples=300)
@given(st.data())
def test_the_text_of_any_nested_value_reads_back_as_the_value(data: st.DataObject) -> None:
    kind, values = data.draw(typed())
    rows = data.draw(st.lists(st.none() | values, max_size=6))
    array = pa.array(rows, kind)
    start = data.draw(st.integers(0, len(rows)))
    for part, expected in ((array, rows), (array.slice(start), rows[start:]), (array.slice(0, start), rows[:start])):
        texts = nullable_texts(part)
        texts.validate(full=True)
        assert texts.type == pa.string()
        parsed = [None if text is None else json.loads(text, parse_float=decimal.Decimal) for text in texts.to_pylist()]
        wanted = [reference(value, kind) for value in expected]
        assert parsed == wanted


def test_a_null_struct_is_a_null_and_not_a_struct_of_its_hidden_children() -> None:
    child = pa.array([1, 2, 3])
    array = pa.StructArray.from_arrays([child], ["a"], mask=pa.array([False, True, False]))
    assert nullable_texts(array).to_pylist() == ['{"a":1}', None, '{"a":3}']
    assert nullable_texts(pa.ListArray.from_arrays([0, 3], array)).to_pylist() == ['[{"a":1},null,{"a":3}]']


def test_a_null_list_over_a_part_of_its_child_does_not_show_it() -> None:
    array = pa.ListArray.from_arrays([0, 1, 2, 3], pa.array([1, 2, 3]), mask=pa.array([False, True, False]))
    assert nullable_texts(array).to_pylist() == ["[1]", None, "[3]"]
    assert nullable_texts(array[1:]).to_pylist() == [None, "[3]"]


def test_numbers_keep_every_digit() -> None:
    kind = pa.struct([("d", pa.decimal128(38, 18)), ("i", pa.int64())])
    value = {"d": decimal.Decimal("12345678901234567890.123456789012345678"), "i": -(2**63)}
    assert nullable_texts(pa.array([value], kind)).to_pylist() == [
        '{"d":12345678901234567890.123456789012345678,"i":-9223372036854775808}'
    ]


def test_a_type_without_a_form_in_json_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="month_day_nano_interval"):
        nullable_texts(pa.array([(1, 2, 3)], pa.month_day_nano_interval()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(value: float) -> None:
    for array in (pa.array([1.5, value]), pa.array([[value]]), pa.array([{"a": value}])):
        with pytest.raises(ValueError, match="NaN and infinities"):
            json_encoder.texts(array)
    with pytest.raises(ValueError, match="NaN and infinities"):
        json_encoder.plain_texts(pa.array([value]))


def test_a_number_that_is_not_finite_under_a_null_is_no_ones() -> None:
    hidden = pa.array([1.5, math.nan])
    mask = pa.array([False, True])
    struct = pa.StructArray.from_arrays([hidden], ["a"], mask=mask)
    lists = pa.ListArray.from_arrays([0, 1, 2], hidden, mask=mask)
    assert json_encoder.texts(struct).to_pylist() == ['{"a":1.5}', "null"]
    assert json_encoder.nullable_texts(lists).to_pylist() == ["[1.5]", None]
