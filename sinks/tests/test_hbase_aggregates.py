"""What rows of one key come to: the same in any split and any order, exact, or an error."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.clients.hbase.rows.mapping import CellColumn
from onefold.core import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks.hbase.aggregates import MERGES, Accumulator, Base, Declared, Own, RowMerge

LONG = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-3, 3)
CENTS = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**30), max_value=10**30)
ROWS = pa.schema(
    [
        ("small", pa.int32()),
        ("cents", pa.decimal128(38, 2)),
        ("seen", pa.string()),
        ("low", pa.timestamp("us", "UTC")),
        ("high", pa.string()),
        ("note", pa.string()),
        ("at", pa.int64()),
        ("tag", pa.string()),
        ("tags", pa.list_(pa.int16())),
    ]
)
MERGE = {
    "small": "sum",
    "cents": "sum",
    "seen": "count",
    "low": "min",
    "high": "max",
    "note": "last",
    "at": "last",
    "tag": "union",
    "tags": "union",
}
WIDE = Context(prec=60)
INSTANT = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))
ROW = st.tuples(
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | CENTS,
    st.none() | st.text(max_size=2),
    st.none() | INSTANT,
    st.none() | st.text(max_size=2),
    st.none() | st.text(max_size=2),
    SMALL,
    st.none() | st.sampled_from("abc"),
    st.none() | st.lists(st.none() | SMALL, max_size=3),
)
KEYED = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"", b"\xff\x00"]), ROW), max_size=12)
Keyed = Sequence[tuple[bytes, tuple[Any, ...]]]


def batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def nulls_last(value: Any) -> tuple[bool, Any]:
    return (value is None, value)


def by_hand(rows: Keyed) -> dict[bytes, dict[str, Any]]:
    """The same in plain Python."""
    found = {}
    for key in dict(rows):
        columns = dict(zip(ROWS.names, zip(*(row for k, row in rows if k == key), strict=True), strict=True))
        values = {name: [v for v in column if v is not None] for name, column in columns.items()}
        at, note = max(zip(columns["at"], columns["note"], strict=True), key=lambda one: (one[0], nulls_last(one[1])))
        found[key] = {
            "small": sum(values["small"]) if values["small"] else None,
            "cents": sum(int(v.scaleb(2, WIDE)) for v in values["cents"]) if values["cents"] else None,
            "seen": len(values["seen"]),
            "low": min(values["low"], default=None),
            "high": max((v.encode() for v in values["high"]), default=None),
            "note": note,
            "at": at,
            "tag": sorted(set(values["tag"])) if values["tag"] else None,
            "tags": sorted({v for tags in values["tags"] for v in tags if v is not None}) if values["tags"] else None,
        }
    return found


def through_an_accumulator(
    aggregate: RowMerge, rows: Keyed, cuts: int, bytes_max: int
) -> tuple[pa.BinaryArray, pa.RecordBatch]:
    accumulator = Accumulator(aggregate, bytes_max)
    for start in range(0, max(len(rows), 1), cuts):
        part = rows[start : start + cuts]
        accumulator.add(pa.array([key for key, _ in part], pa.binary()), batch([row for _, row in part]))
    return accumulator.folded()


def shown(keys: pa.BinaryArray, states: pa.RecordBatch) -> dict[bytes, dict[str, Any]]:
    assert keys.null_count == 0 and len(set(keys.to_pylist())) == len(keys) == len(states)
    states.validate(full=True)
    rows = states.to_pylist()
    for row in rows:
        row["cents"] = None if row["cents"] is None else int(row["cents"].scaleb(2, WIDE))
        row["high"] = None if row["high"] is None else row["high"].encode()
    return dict(zip(keys.to_pylist(), rows, strict=True))


@given(KEYED, st.integers(1, 13), st.sampled_from([0, 100, 10**9]), st.randoms())
def test_rows_fold_to_the_same_in_any_split_and_any_order(
    rows: Keyed, cuts: int, bytes_max: int, chance: random.Random
) -> None:
    aggregate = Declared.of(MERGE, ["at"])
    shuffled = chance.sample(rows, len(rows))
    keys, partials = through_an_accumulator(aggregate, shuffled, cuts, bytes_max)
    states = aggregate.finish(keys, partials, None)
    assert states.schema == aggregate.states(ROWS)
    assert shown(keys, states) == by_hand(rows)


@pytest.mark.slow
@given(st.lists(KEYED, min_size=1, max_size=4))
def test_folding_onto_what_the_table_has_comes_to_the_same_as_folding_all_at_once(epochs: list[Keyed]) -> None:
    aggregate = Declared.of(MERGE, ["at"])
    table: dict[bytes, dict[str, Any]] = {}
    for rows in epochs:
        keys, partials = through_an_accumulator(aggregate, rows, 13, 10**9)
        there = pa.array([key in table for key in keys.to_pylist()], pa.bool_())
        base = [table.get(key, table[min(table)] if table else {}) for key in keys.to_pylist()]
        states = pa.RecordBatch.from_pylist(base, aggregate.states(ROWS))
        after = aggregate.finish(keys, partials, Base(states, there))
        assert after.schema == aggregate.states(ROWS)
        table |= zip(keys.to_pylist(), after.to_pylist(), strict=True)
    keys = pa.array(table, pa.binary())
    states = pa.RecordBatch.from_pylist(list(table.values()), aggregate.states(ROWS))
    assert shown(keys, states) == by_hand([row for rows in epochs for row in rows])


def test_many_keys_come_folded_in_the_order_in_which_they_first_come() -> None:
    rows = [b"key %d" % (n * n % 1009) for n in range(3000)]  # Arrow's own order is another one
    aggregate = Declared.of({"n": "sum", "last": "last"}, ["at"])
    numbers = pa.array(range(3000), pa.int64())
    partials = aggregate.lift(pa.record_batch({"n": numbers, "last": numbers, "at": numbers}))
    keys, folded = aggregate.fold(pa.array(rows, pa.binary()), partials)
    assert keys.to_pylist() == [*dict.fromkeys(rows)]
    sums = [sum(n for n, key in enumerate(rows) if key == one) for one in keys.to_pylist()]
    lasts = [max(n for n, key in enumerate(rows) if key == one) for one in keys.to_pylist()]
    assert (folded["n"].to_pylist(), folded["last"].to_pylist()) == (sums, lasts)


def test_a_row_is_later_than_what_the_table_has_where_the_order_is_not_kept() -> None:
    aggregate = Declared.of({"note": "last"}, ["at"])
    schema = pa.schema([("note", pa.string()), ("at", pa.int64())])
    keys, partials = aggregate.fold(
        pa.array([b"a", b"a", b"b"]), aggregate.lift(batch([("old", 1), ("new", 2), ("alone", 1)], schema))
    )
    base = Base(pa.record_batch({"note": ["there", "nothing"]}), pa.array([True, False]))
    assert aggregate.finish(keys, partials, base).to_pylist() == [{"note": "new"}, {"note": "alone"}]


@given(st.lists(LONG, min_size=1, max_size=6), st.integers(1, 6))
def test_a_sum_of_integers_is_exact_or_an_error(values: list[int], cuts: int) -> None:
    aggregate = Declared.of({"n": "sum"})

    def added() -> pa.RecordBatch:
        accumulator = Accumulator(aggregate, 0)
        for start in range(0, len(values), cuts):
            part = pa.array(values[start : start + cuts], pa.int64())
            accumulator.add(pa.array([b"k"] * len(part), pa.binary()), pa.record_batch({"n": part}))
        return aggregate.finish(*accumulator.folded(), None)

    ends = [*range(cuts, len(values), cuts), len(values)]
    parts = [sum(values[end - cuts if end % cuts == 0 else end - end % cuts : end]) for end in ends]
    if all(-(2**63) <= number < 2**63 for number in (*parts, *(sum(values[:end]) for end in ends))):
        states = added()
        assert states.schema.field("n").type == pa.int64() and states.to_pylist() == [{"n": sum(values)}]
    else:
        with raises(BadRecord, "aggregate-overflow"):
            added()


def test_a_sum_on_what_the_table_has_is_exact_or_an_error() -> None:
    aggregate = Declared.of({"n": "sum", "d": "sum", "c": "count"})
    nines = Decimal("9" * 38)
    rows = pa.record_batch(
        {"n": pa.array([1], pa.int64()), "d": pa.array([Decimal(1)], pa.decimal128(28, 0)), "c": ["x"]}
    )
    states = aggregate.states(rows.schema)
    assert states.field("d").type == pa.decimal128(38, 0)

    def on(n: int, d: Decimal, c: int) -> list[dict[str, Any]]:
        base = pa.RecordBatch.from_pylist([{"n": n, "d": d, "c": c}], states)
        found: list[dict[str, Any]] = aggregate.finish(
            pa.array([b"k"]), aggregate.lift(rows), Base(base, pa.array([True]))
        ).to_pylist()
        return found

    below = Decimal("9" * 37 + "8")
    assert on(2**63 - 2, below, 2**63 - 2) == [{"n": 2**63 - 1, "d": nines, "c": 2**63 - 1}]
    for too_much in ((2**63 - 1, Decimal(0), 0), (0, nines, 0), (0, Decimal(0), 2**63 - 1)):
        with raises(BadRecord, "aggregate-overflow"):
            on(*too_much)


def added(base: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
    """A user's own merge: a sum, and the longest text, or the first in the alphabet of those."""
    longer = pc.or_(
        pc.greater(pc.utf8_length(new["text"]), pc.utf8_length(base["text"])),
        pc.and_(
            pc.equal(pc.utf8_length(new["text"]), pc.utf8_length(base["text"])), pc.less(new["text"], base["text"])
        ),
    )
    return pa.record_batch(
        {"n": pc.add_checked(base["n"], new["n"]), "text": pc.if_else(longer, new["text"], base["text"])}
    )


OWN = pa.schema([("n", pa.int64()), ("text", pa.string())])
OWN_ROWS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.tuples(SMALL, st.text("xyz", max_size=3))),
    min_size=1,
    max_size=20,
)


@given(OWN_ROWS, st.integers(1, 20), st.integers(0, 20))
def test_a_function_of_the_users_own_sees_every_row_once_in_any_split(rows: Keyed, cuts: int, in_table: int) -> None:
    aggregate = pickle.loads(pickle.dumps(Own(added, ("n", "text"))))
    accumulator, before = Accumulator(aggregate, 50), Accumulator(aggregate, 50)
    for one, part in ((before, rows[:in_table]), (accumulator, rows[in_table:])):
        for start in range(0, max(len(part), 1), cuts):
            piece = part[start : start + cuts]
            one.add(pa.array([key for key, _ in piece], pa.binary()), batch([row for _, row in piece], OWN))
    table_keys, table = before.folded()
    keys, partials = accumulator.folded()
    assert aggregate.states(OWN) == OWN
    at = [table_keys.to_pylist().index(key) if key in table_keys.to_pylist() else None for key in keys.to_pylist()]
    places = pa.array(at, pa.int64())
    found = aggregate.finish(keys, partials, Base(table.take(places), places.is_valid()))
    shown = dict(zip(table_keys.to_pylist(), table.to_pylist(), strict=True))
    shown |= zip(keys.to_pylist(), found.to_pylist(), strict=True)
    assert shown == {
        key: {
            "n": sum(n for k, (n, _) in rows if k == key),
            "text": min((t for k, (_, t) in rows if k == key), key=lambda text: (-len(text), text)),
        }
        for key in dict(rows)
    }


def test_a_hot_keys_rows_take_few_calls_and_little_memory() -> None:
    calls: list[int] = []

    def counted(base: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(len(new))
        return added(base, new)

    accumulator = Accumulator(Own(counted, ("n", "text")), bytes_max=100_000)
    rows = pa.record_batch({"n": pa.array([1] * 1000, pa.int64()), "text": ["x"] * 1000})
    for _ in range(100):
        accumulator.add(pa.array([b"hot"] * 1000, pa.binary()), rows)
        assert accumulator.bytes < 150_000
    assert accumulator.folded()[1].to_pylist() == [{"n": 100_000, "text": "x"}]
    assert sum(calls) == 100_000 - 1 and len(calls) < 400


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        (lambda _, new: new.to_pylist(), "merge-function-result"),
        (lambda _, new: new.slice(1), "merge-function-result"),
        (lambda _, new: new.select(["text", "n"]), "merge-function-result"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(returned: Any, code: str) -> None:
    with raises(ConfigError, code):
        Own(returned, ("n", "text")).fold(pa.array([b"k", b"k"]), batch([(1, "a"), (2, "b")], OWN))


@pytest.mark.parametrize(
    ("merge", "order", "said"),
    [
        ({}, [], "names no column"),
        ({"small": "avg"}, [], f"one of {', '.join(MERGES)}"),
        ({"note": "last"}, [], "needs order="),
        ({"small": "sum"}, ["at"], "which no column has"),
        ({"note": "last", "at": "max"}, ["at"], "merge it with 'last'"),
    ],
)
def test_merges_that_make_no_sense_are_refused(merge: dict[str, str], order: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Declared.of(merge, order)


@pytest.mark.parametrize(
    ("merge", "order", "code"),
    [
        ({"nowhere": "sum"}, [], "column-missing"),
        ({"note": "last"}, ["tags"], "column-type"),
        ({"note": "sum"}, [], "column-type"),
        ({"tags": "max"}, [], "column-type"),
        ({"blobs": "union"}, [], "column-type"),
    ],
)
def test_rows_that_cannot_be_folded_so_are_refused(merge: dict[str, str], order: list[str], code: str) -> None:
    with raises(SchemaMismatch, code):
        Declared.of(merge, order).states(ROWS.append(pa.field("blobs", pa.binary())))
    with raises(SchemaMismatch, "column-missing", "'nowhere'"):
        Own(added, ("nowhere",)).states(ROWS)


def test_a_row_without_an_order_is_a_bad_record() -> None:
    aggregate = Declared.of({"note": "last"}, ["at"])
    with raises(BadRecord, "order-null", "'at'"):
        aggregate.lift(batch([("x", None)], pa.schema([("note", pa.string()), ("at", pa.int64())])))


@pytest.mark.parametrize("name", ["x", "row key"])
def test_sums_of_doubles_are_doubles(name: str) -> None:
    aggregate = Declared.of({name: "sum"})
    rows = pa.record_batch({name: pa.array([0.5, 0.25], pa.float32())})
    keys, partials = aggregate.fold(pa.array([b"k", b"k"]), aggregate.lift(rows))
    assert aggregate.finish(keys, partials, None).to_pylist() == [{name: 0.75}]
    assert aggregate.states(rows.schema).field(name).type == pa.float64()


SETS = {
    "texts": pa.array([["a", '\u2028"\\\n', "𝄞", ""], [], None], pa.list_(pa.string())),
    "integers": pa.array([[2**63 - 1, -(2**63)], None], pa.list_(pa.int64())),
    "decimals": pa.array([[Decimal("123456789012345678901234567890123456.78")], None], pa.list_(pa.decimal128(38, 2))),
    "booleans": pa.array([[False, True], None], pa.list_(pa.bool_())),
    "instants": pa.array([[dt.datetime(1, 1, 1, 1, 1, 1, 123456)], None], pa.list_(pa.timestamp("us", "UTC"))),
    "doubles": pa.array([[0.1, 1e300], None], pa.list_(pa.float64())),
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_the_table_has_as_json_comes_back_as_it_was(name: str) -> None:
    sets = SETS[name]
    aggregate = Declared.of({"set": "union"})
    keys = pa.array([bytes([i]) for i, _ in enumerate(sets)], pa.binary())
    nothing = aggregate.lift(pa.record_batch({"set": pa.nulls(len(sets), sets.type)}))
    column = CellColumn.cell("set", "f:set").bound(sets.type)
    base = pa.record_batch({"set": column.decode(column.encode(sets))})
    after = aggregate.finish(keys, nothing, Base(base, pa.array([True] * len(sets))))
    assert after.column("set").to_pylist() == [None if s is None else sorted(s) for s in sets.to_pylist()]
