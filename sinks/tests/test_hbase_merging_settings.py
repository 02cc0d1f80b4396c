"""HBaseSink's modes rolling and incremental without a server: which settings and rows go together."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import BadRecord, ConfigError, Ordered, SchemaMismatch, SinkKind
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.merge import own_cell, previous_cell
from onefold.sinks.hbase.modes.appliers import SequenceColumn

ROWS = pa.schema(
    [("k", pa.string()), ("id", pa.int64()), ("n", pa.int32()), ("at", pa.int64()), ("part", pa.float64())]
)


def newest(_: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
    return new


def sink(**more: Any) -> HBaseSink:
    return HBaseSink(**{"servers": "localhost:9090", "table": "t", "row_key": "k", "family": "f", **more})


def kept(rows: pa.Schema = ROWS, **more: Any) -> dict[str, str]:
    """Column -> the encoding that the table has it in."""
    settings = sink(**more).settings
    return {column.name: column.encoding or "" for column in settings.mode.bound(settings.declared, rows).columns}


ROLLING, INCREMENTAL = {"mode": "rolling"}, {"mode": "incremental", "sequence": "id"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (ROLLING, "option-missing"),
        ({"mode": "incremental", "merge": "replace"}, "option-missing"),
        (INCREMENTAL, "option-missing"),
        ({**ROLLING, "merge": "newest"}, "option-value"),
        ({**ROLLING, "merge": {}}, "option-value"),
        ({**ROLLING, "merge": {"k": "max"}}, "options-conflict"),
        ({**ROLLING, "merge": newest, "order": "at"}, "options-conflict"),
        (
            {**ROLLING, "merge": {"n": "sum"}, "delete_when_true": "gone"},
            "options-conflict",
        ),
        ({**ROLLING, "merge": {"n": "sum"}, "tombstone_column": "f:gone"}, "options-conflict"),
        ({**ROLLING, "merge": "replace", "sequence": "id"}, "options-conflict"),
        ({**INCREMENTAL, "merge": {"n": "last"}, "order": "at"}, "options-conflict"),
        ({"mode": "incremental", "merge": "replace", "sequence": "k"}, "options-conflict"),
        ({"merge": "replace"}, "options-conflict"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        sink(**settings)


def test_the_table_keeps_what_is_merged_and_what_later_rows_are_compared_with() -> None:
    rolled = {"n": "count", "part": "sum"}
    rows = pa.schema([field for field in ROWS if field.name not in ("id", "at")])
    assert kept(rows, **ROLLING, merge=rolled) == {"n": "integer", "part": "double"}
    ordered = pa.schema([field for field in ROWS if field.name != "id"])
    assert kept(ordered, **ROLLING, merge={**rolled, "part": "last"}, order="at").keys() == {"n", "part", "at"}
    assert kept(ordered, **ROLLING, merge=newest).keys() == {"n", "part", "at"}
    assert kept(ordered, **ROLLING, merge="replace", order="at").keys() == {"n", "part", "at"}
    applied = {"n": "sum", "part": "last", "at": "max"}
    assert kept(**INCREMENTAL, merge=applied).keys() == applied.keys()
    assert kept(**INCREMENTAL, merge="replace").keys() == {"n", "at", "part"}
    assert kept(**INCREMENTAL, merge=newest).keys() == {"n", "at", "part"}
    assert kept(**INCREMENTAL, merge="replace", columns={"id": "f:id"}).keys() == {"id", "n", "at", "part"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({**ROLLING, "merge": {"n": "sum"}}, "column-not-merged"),
        ({**ROLLING, "merge": {"nowhere": "sum"}}, "column-missing"),
        ({**INCREMENTAL, "merge": "replace", "columns": {"n": "f:_onefold.n"}}, "column-name-reserved"),
        ({**INCREMENTAL, "sequence": "nowhere", "merge": "replace"}, "column-missing"),
        ({**INCREMENTAL, "sequence": "part", "merge": "replace"}, "column-type"),
    ],
)
def test_rows_that_lack_what_the_mode_needs_are_refused(settings: dict[str, Any], code: str) -> None:
    with raises(SchemaMismatch, code):
        kept(**settings)


def test_ids_are_texts_numbers_bytes_or_instants_in_the_order_of_their_bytes() -> None:
    for values in (
        pa.array([-(2**63), -1, 0, 1, 2**63 - 1], pa.int64()),
        pa.array(["a", "aa", "b", "ä"]),
        pa.array([b"\x00", b"\x00\x00", b"\xff"], pa.binary()),
        pa.array([-1, 0, 1], pa.timestamp("us", "UTC")),
    ):
        rows = pa.record_batch({"id": values})
        ids = SequenceColumn.bound("id", False, rows.schema).encode(rows).to_pylist()
        assert ids == sorted(ids) and len(set(ids)) == len(values)
    with raises(SchemaMismatch, "column-type", "dense_sequence=True"):
        SequenceColumn.bound("id", True, pa.schema([("id", pa.string())]))
    for missing in (pa.array([None], pa.int64()), pa.array([""])):
        rows = pa.record_batch({"id": missing})
        with raises(BadRecord, "sequence-null", "'id'"):
            SequenceColumn.bound("id", False, rows.schema).encode(rows)


def test_the_sinks_own_cells_stay_where_they_are_when_columns_change_places() -> None:
    cells = {"n": "g:n", "at": "f:at", "part": "h:part"}
    settings = sink(**INCREMENTAL, merge="replace", family=None, columns=cells).settings
    for rows in (ROWS, pa.schema(reversed(list(ROWS)))):
        mapping = settings.mode.bound(settings.declared, rows)
        assert own_cell(mapping, b"id") == (b"f", b"_onefold.id")
        assert previous_cell(mapping.columns[-1])[0] == mapping.columns[-1].family


def test_messages_that_are_merged_come_to_their_tasks_in_the_order_of_their_ids() -> None:
    made = sink(**INCREMENTAL, merge={"n": "sum"})
    assert isinstance(made, Ordered) and made.order_by() == ("k", "id")
    assert sink(**INCREMENTAL, merge={"n": "sum"}, repartition=False).order_by() == ()
    assert sink(**INCREMENTAL, merge="replace").order_by() == ()
    assert sink(**INCREMENTAL, merge="replace", dense_sequence=True).order_by() == ("k", "id")
    assert sink(**ROLLING, merge={"n": "last"}, order="at").order_by() == sink().order_by() == ()


def test_what_would_hide_the_sinks_own_cells_is_told_to_the_ledger() -> None:
    """A last id that is not found is a message that is applied again."""

    def told(**more: Any) -> dict[str, str]:
        return sink(**{"merge": {"n": "sum"}, **more}).settings.identity()

    always = {"table": "t", "mode": "incremental", "row_key": "k", "sequence": "id", "first family": "f"}
    assert told(**INCREMENTAL) == always
    assert told(**INCREMENTAL, columns={"n": "a:n"}) == {**always, "first family": "a"}
    assert told(mode="incremental", sequence="at") == {**always, "sequence": "at"}
    assert told(**ROLLING, merge={"n": "max"}).items() == {**always, "mode": "rolling"}.items() - {("sequence", "id")}
    assert "first family" not in told(**ROLLING, merge="replace")
    given = sink(**INCREMENTAL, merge="replace", columns={"n": "g:n"}).settings
    columns = ["k", "id", "n"]
    for more in ("at", "part"):  # the family `f` has no column at first
        rows = pa.schema([ROWS.field(name) for name in columns])
        assert own_cell(given.mode.bound(given.declared, rows), b"id")[0] == b"f"
        columns.append(more)


def test_the_sinks_travel_and_say_what_they_rest_on() -> None:
    for settings in (
        {**ROLLING, "merge": {"n": "sum", "part": "last"}, "order": "at"},
        {**ROLLING, "merge": newest},
        {**INCREMENTAL, "merge": {"n": "sum", "part": "last"}},
    ):
        made = pickle.loads(pickle.dumps(sink(**settings)))
        promise = made.guarantee()
        assert (promise.mode, promise.kind) == (settings["mode"], SinkKind.WRITE_THROUGH)
        text = "; ".join(promise.conditions)
        assert ("deterministic" in text) == (settings["mode"] == "rolling")
        assert "TTL" in text and "in one task" in text
        assert made.partition_by() == ("k",)
        assert made.settings.declared == TableMapping.of("t", "k", family="f")
