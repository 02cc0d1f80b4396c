"""Key groups: one hash for one value, in every process and for every type that brings it; and who has which group."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core.errors import ConfigError
from onefold.engine.key_groups import group_of, groups_of, key_groups_of_subtask, split_by_subtask, subtask_of

NOON = dt.datetime(2026, 11, 24, 12, 0, 0, 123456, ZoneInfo("Europe/Berlin"))
LIMIT = 1 << 15
# Snapshots depend on these: a change needs a new format, and a way to read the old one.
GOLDEN: list[tuple[tuple[Any, ...], int]] = [
    ((0,), 19887),
    ((1,), 11296),
    ((-1,), 24772),
    ((2**63 - 1,), 22552),
    (("",), 19887),
    (("Ada",), 18194),
    (("Grüße aus Köln",), 5440),
    (("x" * 65,), 30423),
    ((b"Ada",), 18194),
    ((Decimal("12.50"),), 16567),
    ((Decimal("-12345678901234567890.123"),), 18394),
    ((NOON,), 19308),
    ((NOON.replace(tzinfo=None),), 27195),
    ((NOON.date(),), 11562),
    ((NOON.time(),), 18199),
    ((None,), 31897),
    ((True,), 11296),
    ((1, "Ada"), 19547),
    (("Ada", 1), 22667),
    ((None, None), 23379),
]
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=80)),
    (pa.large_string(), st.text(max_size=9)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "a", "b" * 70])),
    (pa.binary(), st.binary(max_size=80)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(38, 3), st.decimals(-(10**34), 10**34, places=3)),
    (pa.decimal64(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.decimal256(50, 2), st.decimals(-(10**40), 10**40, places=2)),
    (pa.timestamp("us", "Europe/Berlin"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.timestamp("s"), st.datetimes().map(lambda at: at.replace(microsecond=0))),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.duration("ms"), st.integers(-(10**12), 10**12).map(lambda ms: dt.timedelta(milliseconds=ms))),
    (pa.null(), st.none()),
]


@pytest.mark.parametrize(("key", "group"), GOLDEN, ids=lambda value: repr(value)[:40])
def test_the_group_of_a_key_never_changes(key: tuple[Any, ...], group: int) -> None:
    assert group_of(key, LIMIT) == group


def test_another_process_with_another_seed_of_its_own_finds_the_same_groups() -> None:
    code = "from onefold.engine.key_groups import group_of; print(group_of(('Ada', b'x', 7), 32768))"
    groups = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert groups == {f"{group_of(('Ada', b'x', 7), LIMIT)}\n".encode()}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_columns_groups_are_those_of_its_values(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(range(len(TYPES))), min_size=1, max_size=3))
    size = data.draw(st.integers(0, 12))
    columns = []
    for number in types:
        of, values = TYPES[number]
        rows = data.draw(st.lists(st.none() | values, min_size=size + 2, max_size=size + 2))
        columns.append(pa.array(rows, of).slice(1, size))  # a slice has offsets of its own
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert groups_of(columns, LIMIT).tolist() == [group_of(key, LIMIT) for key in keys]


def test_equal_values_of_other_types_are_in_one_group() -> None:
    for same in (
        (Decimal("1.5"), Decimal("1.500"), Decimal("0.15E1")),
        (Decimal("100"), Decimal("1E2"), Decimal("100.00")),
        (NOON, NOON.astimezone(dt.UTC), NOON.astimezone(ZoneInfo("Asia/Tokyo"))),
        (1, True),
    ):
        assert len({group_of((value,), LIMIT) for value in same}) == 1
    units = [
        groups_of([pa.array([NOON], pa.timestamp("us", "UTC")).cast(pa.timestamp(u, "UTC"), safe=False)], LIMIT)
        for u in ("us", "ns")
    ]
    assert units[0] == units[1]


@pytest.mark.parametrize(
    "of", [pa.float64(), pa.float32(), pa.list_(pa.int64()), pa.struct({"a": pa.int64()})], ids=str
)
def test_what_cannot_be_a_key_is_refused(of: pa.DataType) -> None:
    with raises(ConfigError, "key-type"):
        groups_of([pa.array([None], of)])
    with raises(ConfigError, "key-type"):
        group_of((1.5,))


@pytest.mark.parametrize("subtasks", [1, 2, 3, 7, 128])
def test_groups_are_contiguous_and_each_has_one_subtask(subtasks: int) -> None:
    ranges = [key_groups_of_subtask(number, subtasks) for number in range(subtasks)]
    assert [group for groups in ranges for group in groups] == list(range(128))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    for number, groups in enumerate(ranges):
        assert {subtask_of(group, subtasks) for group in groups} == {number}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["a", "b", None])), max_size=60), st.integers(1, 5))
def test_a_split_keeps_every_row_in_order_and_each_key_with_its_subtask(
    rows: list[tuple[int, str | None]], subtasks: int
) -> None:
    batch = pa.record_batch(
        {
            "number": pa.array(range(len(rows)), pa.int64()),
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "name": pa.array([row[1] for row in rows], pa.string()),
        }
    )
    parts = split_by_subtask(batch, ["id", "name"], 128, subtasks)
    assert len(parts) == subtasks
    for subtask, part in enumerate(parts):
        numbers = part.column("number").to_pylist()
        assert numbers == [n for n, row in enumerate(rows) if subtask_of(group_of(row), subtasks) == subtask]


def test_more_subtasks_than_groups_are_refused() -> None:
    with raises(ConfigError, "max-parallelism"):
        key_groups_of_subtask(0, 9, 8)


def test_rows_without_a_key_are_all_the_first_subtasks() -> None:
    batch = pa.record_batch({"n": [1, 2, 3]})
    assert [part.num_rows for part in split_by_subtask(batch, (), 4, 3)] == [3, 0, 0]
