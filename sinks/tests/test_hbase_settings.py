"""HBaseSink without a server: settings, and what it promises."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.hbase import HBaseSettings
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import Partitioned, SinkWriter, TaskId
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.modes import row_key
from onefold.sinks.hbase.sink_plan import HBasePlan

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])
MAPPED = TableMapping.of("t", "id", family="f")
DELETABLE = TableMapping.of("t", "id", family="f", tombstone_column="f:_deleted")


def sink(**more: Any) -> HBaseSink:
    return HBaseSink(**{"servers": "localhost:9090", "table": "t", "row_key": "id", "family": "f", **more})


def mapped(mapping: TableMapping, **more: Any) -> HBaseSink:
    return HBaseSink("localhost:9090", mapping, **more)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"servers": "localhost"}, "option-value"),
        ({"table": ""}, "option-value"),
        ({"row_key": None}, "option-missing"),
        ({"family": None}, "option-missing"),
        ({"mode": "keyed"}, "option-value"),
        ({"table": "onefold_ledger"}, "ledger-is-target"),
        ({"regions": 0}, "option-value"),
        ({"regions": 4}, "table-not-splittable"),
        ({"salt": 4, "regions": 5}, "table-not-splittable"),
        ({"delete_when_true": "gone", "delete_mode": "soft"}, "option-value"),
        ({"delete_mode": "real"}, "option-missing"),
        ({"delete_when_true": "id"}, "options-conflict"),
        ({"delete_when_true": "n", "order": "n"}, "options-conflict"),
        (
            {"delete_when_true": "gone", "columns": {"gone": "f:gone"}},
            "options-conflict",
        ),
        ({"delete_when_true": "gone", "delete_mode": "real", "tombstone_column": "f:d"}, "options-conflict"),
        ({"order": ("n", "n")}, "option-value"),
        ({"order": "id"}, "options-conflict"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        sink(**settings)


def test_what_a_mapping_says_is_not_said_twice() -> None:
    for more in ({"row_key": "id"}, {"columns": {"n": "f:n"}}, {"family": "f"}, {"tombstone_column": "f:_deleted"}):
        with raises(ConfigError, "options-conflict"):
            mapped(MAPPED, **more)
    with raises(ConfigError, "option-missing"):
        mapped(MAPPED, delete_when_true="gone")
    assert mapped(MAPPED).settings.declared == sink().settings.declared


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"family": "f"}, b"f"),
        ({"columns": {"n": "g:n"}, "family": "f"}, b"f"),
        ({"columns": {"n": "g:n"}, "family": None}, b"g"),
    ],
)
def test_tombstones_have_a_cell_beside_the_others(cells: dict[str, Any], expected: bytes) -> None:
    marked = sink(delete_when_true="gone", **cells).settings.declared.tombstone_column
    assert marked is not None and (marked.family, marked.qualifier) == (expected, b"_deleted")
    assert sink(delete_when_true="gone", delete_mode="real", **cells).settings.declared.tombstone_column is None


@pytest.mark.parametrize(
    ("settings", "schema", "code"),
    [
        ({"order": "at"}, SCHEMA, "column-missing"),
        ({"delete_when_true": "at"}, SCHEMA, "column-missing"),
        ({"delete_when_true": "n"}, SCHEMA, "column-type"),
        ({"order": "n"}, pa.schema([("id", pa.int64()), ("n", pa.float64())]), "column-type"),
        ({"order": "n"}, pa.schema([("id", pa.int64()), ("n", pa.list_(pa.int64()))]), "column-type"),
        ({"row_key": "key"}, SCHEMA, "column-missing"),
    ],
)
def test_rows_that_lack_what_the_mode_needs_are_refused(settings: dict[str, Any], schema: pa.Schema, code: str) -> None:
    given = sink(**settings).settings
    with raises(SchemaMismatch, code):
        given.mode.bound(given.declared, schema)


def test_the_column_that_marks_deletions_is_no_cell() -> None:
    given = sink(delete_when_true="gone", order="n").settings
    assert [column.name for column in given.mode.bound(given.declared, SCHEMA).columns] == ["n"]


def test_the_rows_of_a_key_go_to_one_task_unless_the_user_knows_better() -> None:
    assert isinstance(sink(), Partitioned)
    assert sink(row_key="id, n").partition_by() == ("id", "n")
    assert sink(repartition=False).partition_by() == ()
    assert (sink().in_place(), sink(repartition=False).in_place()) == (False, True)


def test_the_guarantee_says_what_it_rests_on() -> None:
    promise = sink().guarantee()
    assert (promise.mode, promise.kind.value, promise.atomic_epoch) == ("row_key", "write-through", False)
    assert any("deterministic" in condition for condition in promise.conditions)
    assert any("a key comes once" in condition for condition in promise.conditions)
    ordered = sink(order="n").guarantee().conditions
    assert not any("a key comes once" in condition for condition in ordered)
    assert any("in one task" in condition for condition in ordered), "else which of two tasks wins would be chance"
    assert any(
        "major compaction" in c for c in sink(delete_when_true="gone", delete_mode="real").guarantee().conditions
    )


def test_a_sink_travels_and_may_name_its_servers_settings_as_a_value() -> None:
    there = sink(servers=HBaseSettings("a:1,b:2", transport="framed"), delete_when_true="gone", order="n")
    assert pickle.loads(pickle.dumps(there)).settings == there.settings
    assert repr(there) == "HBaseSink(table='t', name='t', mode='row_key')"


def test_rows_with_an_order_are_folded_while_they_are_held_and_too_many_keys_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By their bytes, however few there are."""
    monkeypatch.setattr(row_key, "BYTES_MAX", 500)
    monkeypatch.setattr(row_key, "HELD_BYTES_MAX", 4000)
    given = sink(order="n").settings
    plan = HBasePlan(given, given.mode.bound(given.declared, SCHEMA), SCHEMA)

    def write(writer: SinkWriter, keys: int) -> None:
        for first in range(0, 1000, 10):
            columns = [[i % keys for i in range(first, first + 10)], [*range(first, first + 10)], [None] * 10]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    task = TaskId("p", 1, 7, 1000, uuid.uuid4())
    write(given.mode.writer(plan, task), keys=10)
    with raises(ConfigError, "task-too-large"):
        write(given.mode.writer(plan, task), keys=1000)
