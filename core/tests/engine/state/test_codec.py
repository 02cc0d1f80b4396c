"""Values of states come back exactly: in bytes, in columns, and whatever is mixed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core.errors import ConfigError, DataLoss
from onefold.engine.state.arrow_entries import Entries, from_ipc, to_ipc
from onefold.engine.state.codec import decode, encode
from onefold.flow.processing.declaring import as_schema

ZONES = st.sampled_from([dt.UTC, ZoneInfo("Europe/Berlin"), dt.timezone(dt.timedelta(hours=-3, minutes=-30))])
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.datetimes(dt.datetime(1900, 1, 1), timezones=ZONES),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.just("\ud800"),  # half a surrogate pair
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=2)
    ),
    max_leaves=6,
)


def exact(value: Any) -> Any:
    """What is equal only where the types, the exponents and the zones are too."""
    match value:
        case list() | tuple():
            return type(value), [exact(item) for item in value]
        case dict():
            return [(key, exact(item)) for key, item in value.items()]
        case dt.datetime():
            has_two = isinstance(value.tzinfo, ZoneInfo)  # hours of one name, which the fold tells apart
            return value.replace(tzinfo=None, fold=0), str(value.tzinfo), has_two and value.fold
    return type(value), str(value)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_a_value_comes_back_from_bytes(value: Any) -> None:
    assert exact(decode(encode(value))) == exact(value)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_entries_come_back_from_columns(data: st.DataObject) -> None:
    column = st.one_of(*(st.just(kind) for kind in (st.integers(), st.text(), SCALARS, VALUES, st.none())))
    kinds = data.draw(st.lists(column, max_size=3))
    size = data.draw(st.integers(1, 5))
    values = [data.draw(st.none() | st.tuples(*kinds)) for _ in range(size)]
    keys = [(number, data.draw(st.text())) for number in range(size)]
    subs = [data.draw(st.tuples() | st.tuples(SCALARS)) for _ in range(size)]
    back = from_ipc(to_ipc(Entries(keys, subs, values)), None, 128)
    assert exact(list(back.keys)) == exact(keys)
    assert exact(list(back.subs)) == exact(subs)
    assert exact(list(back.values)) == exact(values)


@pytest.mark.parametrize(
    "column",
    [
        [Decimal("1.50"), None, Decimal("-2.00")],
        [Decimal("1.5"), Decimal("1.50")],
        [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None],
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
        [2**70, -(2**70)],
        [1, True, 1.0],
    ],
    ids=str,
)
def test_a_column_keeps_what_makes_values_differ(column: list[Any]) -> None:
    keys = [(number,) for number in range(len(column))]
    back = from_ipc(to_ipc(Entries(keys, [()] * len(keys), [(value,) for value in column])), None, 128)
    assert [exact(value) for (value,) in back.values] == [exact(value) for value in column]


def test_a_type_that_cannot_be_stored_is_refused_by_name() -> None:
    with raises(ConfigError, "state-value-type") as refused:
        encode(({1},))
    assert refused.value.code == "state-value-type"


@settings(max_examples=200, deadline=None)
@given(VALUES, st.data())
def test_bytes_that_are_cut_or_changed_are_a_named_error_or_another_value(value: Any, data: st.DataObject) -> None:
    whole = encode((value,))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with raises(DataLoss, "state-value-damaged"):
        decode(cut)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(b"[\0\0\0\1" * 100_000 + b"N", id="deeper than Python reads"),
        pytest.param(b"[\0\0\0\1" * 201 + b"N", id="deeper than any"),
        pytest.param(b"{\0\0\0\1[\0\0\0\0N", id="a list as a key"),
        pytest.param(b"e\0\0\0\1N", id="a span of nothing"),
        pytest.param(b"z\0\0\0\x10" + b"\0" * 9 + b"America", id="a zone that is a folder"),
    ],
)
def test_bytes_that_nobody_wrote_are_damage(changed: bytes) -> None:
    with raises(DataLoss, "state-value-damaged"):
        decode(changed)


def test_entries_of_no_key_are_of_the_first_key_group() -> None:
    entries = Entries([(), ()], [(1,), (2,)], [(1,), (2,)])
    assert from_ipc(to_ipc(entries), {0, 1}, 128) == entries
    assert from_ipc(to_ipc(entries), {1, 2}, 128) == Entries([], [], [])


def test_a_value_of_the_deepest_schema_that_a_flow_takes_is_read() -> None:
    deep, kind = cast(Any, 1), pa.int64()
    for _ in range(50):
        deep, kind = [deep], pa.list_(kind)
    assert as_schema(pa.schema({"a": kind}), "it").field(0).type == kind
    with raises(ConfigError, "schema-too-deep", "'a'"):
        as_schema(pa.schema({"a": pa.list_(kind)}), "it")
    assert decode(encode((deep, {"more": [[deep]]}))) == (deep, {"more": [[deep]]})
