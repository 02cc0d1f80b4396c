"""delivery="keyed" without a broker: settings, ids, and what its notes add up to in any order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core import Announcement, Binding, EpochRecord, EpochState, InPlace, LedgerEntry, Ordered, Positions, Range
from onefold.core.errors import BadRecord, CheckpointMismatch, ConfigError, SchemaMismatch
from onefold.sinks.epoch_log import LedgerState
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.kafka.encoding import RecordEncoding
from onefold.sinks.kafka.keyed_ids import IdOrder, Ids
from onefold.sinks.write_through import AnnouncingCommitter, ErrorNames

JSON = RecordEncoding("json")


def sink(**more: Any) -> KafkaSink:
    return KafkaSink("orders", bootstrap_servers="localhost:9092", **{"delivery": "keyed", **more})


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "option-missing"),
        ({"id": ("a", "a")}, "option-value"),
        ({"id": "a", "key": "b"}, "option-missing"),
        ({"id": "a", "id_header": ""}, "option-value"),
        ({"id": "a", "id_header": "h", "headers": "h"}, "options-conflict"),
        ({"format": "raw", "id": "a"}, "options-conflict"),
        ({"delivery": "transactional", "id": "a"}, "options-conflict"),
        ({"id": "a", "client_config": {"enable.gapless.guarantee": "false"}}, "option-not-allowed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        sink(**settings)


def test_a_sink_that_writes_through_says_what_its_readers_have_to_do() -> None:
    promise = sink(id="a").guarantee()
    assert (promise.mode, promise.kind.value, promise.atomic_epoch) == ("keyed", "write-through", False)
    assert any("deduplicate" in condition for condition in promise.conditions)
    assert sink(format="raw").guarantee() == promise


@pytest.mark.parametrize(
    ("ids", "schema", "code"),
    [
        (Ids(("a",)), {"b": pa.string()}, "column-missing"),
        (Ids(("a",)), {"a": pa.float64()}, "column-type"),
        (Ids(("a",)), {"a": pa.decimal128(3, 0)}, "column-type"),
        (Ids(("a", "b")), {"a": pa.binary(), "b": pa.int64()}, "column-type"),
        (Ids(("a", "b")), {"a": pa.int64(), "b": pa.string()}, "column-type"),
    ],
)
def test_columns_that_make_no_id_are_refused(ids: Ids, schema: dict[str, pa.DataType], code: str) -> None:
    with raises(SchemaMismatch, code):
        ids.check(JSON, pa.schema(schema))


def test_raw_rows_have_to_bring_a_column_for_the_id() -> None:
    raw, schema = RecordEncoding("raw"), pa.schema({"value": pa.binary()})
    for ids, code in ((Ids(), "column-missing"), (Ids(header="id"), "column-missing")):
        with raises(SchemaMismatch, code):
            ids.check(raw, schema)


ROWS = pa.record_batch(
    {"t": ["größe", "a:b"], "p": pa.array([3, 4], pa.int32()), "n": [17, 2**62], "b": [b"\xff", b"x"]}
)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("t",), ["größe".encode(), b"a:b"]),
        (("b",), [b"\xff", b"x"]),
        (("n",), [b"17", b"4611686018427387904"]),
        (("t", "n"), ["größe:17".encode(), b"a:b:4611686018427387904"]),
        (("t", "p", "n"), ["größe/3:17".encode(), b"a:b/4:4611686018427387904"]),
    ],
)
def test_ids_are_made_of_one_column_or_of_several(columns: tuple[str, ...], expected: list[bytes]) -> None:
    (in_key,) = Ids(columns).records(JSON, ROWS, IdOrder())
    assert in_key.keys == expected
    keyed = RecordEncoding("json", ("p",), ("b",))
    (in_header,) = Ids(columns, "id").records(keyed, ROWS, IdOrder())
    assert in_header.keys == [b"3", b"4"]
    assert in_header.headers == [[("b", b"\xff"), ("id", expected[0])], [("b", b"x"), ("id", expected[1])]]
    assert in_header.values == next(iter(keyed.records(ROWS))).values


@pytest.mark.parametrize("bad", [None, ""])
def test_a_row_whose_id_is_null_or_empty_is_refused(bad: str | None) -> None:
    rows = pa.record_batch({"t": ["x", bad], "n": [1, 2]})
    with raises(BadRecord, "id-missing"):
        list(Ids(("t",)).records(JSON, rows, IdOrder()))
    if bad is None:
        with raises(BadRecord, "id-missing"):
            list(Ids(("t", "n"), "id").records(JSON, rows, IdOrder()))


def test_raw_rows_without_their_id_are_refused() -> None:
    raw = RecordEncoding("raw")
    keyed = pa.record_batch({"value": [b"v", b"w"], "key": [b"a", None]})
    assert next(iter(Ids().records(raw, keyed.slice(0, 1), IdOrder()))).keys == [b"a"]
    with raises(BadRecord, "id-missing"):
        list(Ids().records(raw, keyed, IdOrder()))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = pa.array([[{"key": "id", "value": b"a"}], None], kind)
    headed = pa.record_batch({"value": [b"v", b"w"], "headers": pairs})
    assert next(iter(Ids(header="id").records(raw, headed.slice(0, 1), IdOrder()))).headers == [[("id", b"a")]]
    with raises(BadRecord, "id-missing", "'id'"):
        list(Ids(header="id").records(raw, headed, IdOrder()))


def span(epoch: int) -> Range:
    return Range(Positions.of({"t/0": epoch, "größe/1": 0}), Positions.of({"t/0": epoch + 1, "größe/1": 5}))


numbers = st.integers(1, 4)
states = st.builds(
    LedgerState,
    st.none() | st.builds(lambda e, g: LedgerEntry(e, g, 100 + e, span(e).end, "store"), numbers, numbers),
    st.none() | st.builds(lambda e, g, w: Announcement(e, g, 100 + e, span(e), w), numbers, numbers, st.booleans()),
)


@given(st.lists(states, max_size=4))
def test_notes_add_up_to_the_same_in_any_order_and_come_back_from_their_text(noted: list[LedgerState]) -> None:
    sums = set()
    for order in itertools.permutations(noted):
        state = LedgerState()
        for other in order:
            state = state.joined(LedgerState.from_json(other.to_json()))
        sums.add(repr(state))
    assert len(sums) == 1


def test_a_note_of_an_older_generation_counts_for_nothing_behind_one_of_a_newer() -> None:
    row, begun = LedgerEntry(1, 4, 101, span(1).end, "store"), Announcement(2, 4, 102, span(2))
    for newer in (LedgerState(row), LedgerState(announced=begun)):
        for late in (
            LedgerState(replace(row, epoch=9, generation=3)),
            LedgerState(announced=replace(begun, epoch=9, generation=3)),
        ):
            assert newer.after(late, generation=3) == newer
            assert late.after(newer, generation=4) == late.joined(newer), "what was there before stays"


class Memory:
    """Notes that somebody else writes to between a read and a write."""

    def __init__(self, state: LedgerState) -> None:
        self.state, self.between = state, LedgerState()

    def read(self) -> LedgerState:
        return self.state

    def write(self, state: LedgerState, generation: int) -> LedgerState:
        self.state = self.state.joined(self.between).after(state, generation)
        self.between = LedgerState()
        return self.state

    def close(self) -> None:
        return


def committer_of(notes: Memory) -> AnnouncingCommitter:
    return AnnouncingCommitter(ErrorNames("orders", "sink 'orders'", "the notes", "the rows", "the servers are"), notes)


def test_two_rows_of_one_epoch_and_generation_are_never_both_taken_for_written() -> None:
    mine = LedgerEntry(2, 3, 102, span(2).end, "store")
    notes = Memory(LedgerState(LedgerEntry(1, 3, 101, span(1).end, "store")))
    notes.between = LedgerState(replace(mine, timestamp_ms=999))
    with raises(CheckpointMismatch, "two-copies-of-store"):
        committer_of(notes).write_ledger(mine)
    notes.state, notes.between = LedgerState(), LedgerState(announced=Announcement(1, 3, 999, span(1)))
    begun = EpochRecord("p", 1, 3, EpochState.OPEN, span(1), 101, "q", 0, "job")
    with raises(CheckpointMismatch, "epoch-begun-otherwise"):
        committer_of(notes).announce(begun)


def test_a_binding_keeps_what_lands_between_its_look_and_its_note() -> None:
    notes = Memory(LedgerState(LedgerEntry(1, 2, 101, span(1).end, "other")))
    landed = LedgerEntry(2, 2, 102, span(2).end, "other")
    notes.between = LedgerState(landed)
    committer_of(notes).bind(Binding("store", 3, takes_over=True))
    assert notes.state.entry == replace(landed, generation=3, store_id="store")


parts = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 12)), min_size=1, max_size=8), max_size=4)


@given(parts)
def test_numbers_that_do_not_grow_within_their_source_are_refused_wherever_a_batch_ends(
    batches: list[list[tuple[str, int]]],
) -> None:
    highest: dict[str, int] = {}
    order = IdOrder()
    for batch in batches:
        falls = False
        for source, number in batch:
            falls = falls or number <= highest.get(source, -1)
            highest[source] = max(number, highest.get(source, -1))
        sources, numbers = pa.array([s for s, _ in batch]), pa.array([n for _, n in batch], pa.int32())
        if falls:
            with raises(BadRecord, "id-out-of-order"):
                order.check(sources, numbers)
            return
        order.check(sources, numbers)


def test_a_number_that_readers_do_not_take_is_refused() -> None:
    order, sources = IdOrder(), pa.array(["a", "b"])
    order.check(sources, pa.array([1, 2**63 - 1], pa.uint64()))
    with raises(BadRecord, "id-number-too-high", f"{2**63}"):
        order.check(sources, pa.array([2, 2**63], pa.uint64()))


def test_ids_of_several_columns_have_to_grow_in_a_task_and_those_of_one_need_not() -> None:
    rows = pa.record_batch({"t": ["a", "b", "a"], "n": [2, 1, 1]})
    with raises(BadRecord, "id-out-of-order"):
        list(Ids(("t", "n")).records(JSON, rows, IdOrder()))
    assert len(list(Ids(("n",)).records(JSON, rows, IdOrder()))) == 1


def test_no_two_sources_of_ids_have_one_name() -> None:
    schema = {"a": pa.string(), "b": pa.string(), "n": pa.int64()}
    ids = Ids(("a", "b", "n"))
    good = pa.record_batch({"a": ["x/y", "x"], "b": ["z", "y"], "n": [1, 1]}, schema=pa.schema(schema))
    (records,) = ids.records(JSON, good, IdOrder())
    assert records.keys == [b"x/y/z:1", b"x/y:1"]
    bad = pa.record_batch({"a": ["x", "x"], "b": ["y", "y/z"], "n": [1, 1]}, schema=pa.schema(schema))
    with raises(BadRecord, "id-with-slash"):
        [*ids.records(JSON, bad, IdOrder())]


@pytest.mark.parametrize(
    ("settings", "partition_by", "order_by", "in_place"),
    [
        ({"id": ("a", "b", "n")}, ("a", "b"), ("n",), False),
        ({"id": ("a", "n"), "repartition": False}, (), (), True),
        ({"id": "a"}, (), (), True),
        ({"format": "raw"}, (), (), True),
        ({"delivery": "transactional"}, (), (), False),
        ({"delivery": "transactional", "repartition": False}, (), (), True),
    ],
)
def test_a_sink_asks_for_its_sources_rows_in_one_task_and_in_order(
    settings: dict[str, Any], partition_by: tuple[str, ...], order_by: tuple[str, ...], in_place: bool
) -> None:
    made = sink(**settings)
    assert (made.partition_by(), made.order_by(), made.in_place()) == (partition_by, order_by, in_place)
    assert isinstance(made, Ordered) and isinstance(made, InPlace)


def test_a_keyed_sink_is_another_to_a_begun_epoch_by_ids_key_and_topic_and_by_nothing_else() -> None:
    own = {"id": ("a", "n"), "id_header": "id", "key": "k"}
    same = sink(**own).identity()
    assert same == sink(**own, timeout_s=3, client_config={"linger.ms": "7"}, repartition=False).identity()
    others = ({"id": ("b", "n")}, {"id_header": "other"}, {"key": "j"}, {"headers": "h"})
    assert same not in [sink(**own | other).identity() for other in others]
    assert same != KafkaSink("elsewhere", bootstrap_servers="b:1", delivery="keyed", name="t", **own).identity()
