"""What becomes of a state's entries where its schema changes: as columns of Arrow and as tuples alike."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import DataLoss
from onefold.core.values.ddl import schema_of
from onefold.core.values.exact import exact_array
from onefold.engine.state.schemas.description import AggregateDescription, OperatorDescription, StateDescription
from onefold.engine.state.schemas.planning import Unlike, migrations
from onefold.engine.state.schemas.widening import is_same_key, is_widened
from onefold.engine.state.state_backend import Migrations, StateKind, StateSpec
from onefold.flow import Evolution
from onefold.flow.processing.rows import values_of

KEY = schema_of("key string")
SPEC = StateSpec("it", "s", StateKind.VALUE)
DAY, NOON = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2)
ROWS: list[tuple[Any, ...]] = [(1, DAY, Decimal("1.50"), 0.5), (None, None, None, None)]
BEFORE = "id int, day date, amt decimal(5,2), rate float"


def operator(*states: StateDescription, **more: Any) -> OperatorDescription:
    return OperatorDescription(**{"uid": "it", "kind": "process", "key": KEY, "states": states, **more})


def value(ddl: str) -> OperatorDescription:
    return operator(StateDescription("s", "value", schema_of(ddl)))


# now, evolution, the rows as they are then; None: they stay as they are
TAKEN: dict[str, tuple[str, dict[str, Any], list[tuple[Any, ...]] | None]] = {
    "the same": (BEFORE, {}, None),
    "int to long, more digits, float to double": ("id long, day date, amt decimal(9,2), rate double", {}, None),
    "another order": (
        "day date, rate float, amt decimal(5,2), id int",
        {},
        [(DAY, 0.5, Decimal("1.50"), 1), (None,) * 4],
    ),
    "a column less": ("id int, day date, amt decimal(5,2)", {}, [ROWS[0][:3], ROWS[1][:3]]),
    "a nullable column more": (f"{BEFORE}, more string", {}, [(*ROWS[0], None), (*ROWS[1], None)]),
    "a column that begins with a value": (
        f"{BEFORE}, more decimal(9,2) not null",
        {"begins": {"it.more": 3}},
        [(*ROWS[0], Decimal("3.00")), (*ROWS[1], Decimal("3.00"))],
    ),
    "a date to a timestamp": (
        "id int, day timestamp_ntz, amt decimal(5,2), rate float",
        {},
        [(1, NOON, Decimal("1.50"), 0.5), (None,) * 4],
    ),
    "more digits behind the point": (
        "id int, day date, amt decimal(7,3), rate float",
        {},
        [(1, DAY, Decimal("1.500"), 0.5), (None,) * 4],
    ),
    "renamed": ("id int, day date, amount decimal(5,2), rate float", {"columns": {"it.amt": "amount"}}, None),
    "renamed and moved": (
        "amount decimal(5,2), id int, day date, rate float",
        {"columns": {"it.amt": "amount"}},
        [(Decimal("1.50"), 1, DAY, 0.5), (None,) * 4],
    ),
    "one gone, one new": (
        "id int, day date, amt decimal(5,2), more int",
        {"drops": ["it.rate"]},
        [(*ROWS[0][:3], None), (None,) * 4],
    ),
}


@pytest.mark.parametrize("what", TAKEN)
def test_what_is_taken(what: str) -> None:
    ddl, evolution, rows = TAKEN[what]
    found = migrations(value(BEFORE), value(ddl), Evolution(**evolution))
    assert migrations(value(ddl), value(ddl), Evolution(**evolution)) == {}, "what is done is not done again"
    if rows is None:
        assert found == {}
        return
    migration, schema = found[SPEC], schema_of(ddl)
    assert migration.target == SPEC
    assert [repr(row) for row in migration.values([*ROWS, None])] == [*map(repr, rows), "None"]
    columns = zip(*(("k", *row) for row in ROWS), strict=True)
    arrays = [exact_array(of, field.type) for of, field in zip(columns, [*KEY, *schema_of(BEFORE)], strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*KEY, *schema_of(BEFORE)]))
    moved = migration.rows(batch, 1)
    assert moved.schema == pa.schema([*KEY, *schema])
    assert [*values_of(moved)] == [("k", *row) for row in rows]
    assert migration.rows(batch.slice(0, 0), 1).schema == moved.schema
    for damaged in ((1,), (*ROWS[0], 1), ("x", 1, 2, 3)):
        with raises(DataLoss, "state-value-damaged"):
            migration.values([damaged, (None,) * 5])


REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "renamed": ("id int, day date, amount decimal(5,2), rate float", {}, ("amount decimal128(5, 2)", "amt decimal")),
    "one gone, one new": ("id int, day date, amt decimal(5,2), more int", {}, ("more int32", "rate float")),
    "long to int": ("id short, day date, amt decimal(5,2), rate float", {}, ("id int16", "id int32")),
    "double to float": ("id double, day date, amt decimal(5,2), rate float", {}, ("id double", "id int32")),
    "fewer digits": ("id int, day date, amt decimal(5,3), rate float", {}, ("amt decimal128(5, 3)", "amt decimal")),
    "a text": ("id int, day string, amt decimal(5,2), rate float", {}, ("day string", "day date32")),
    "not null": (f"{BEFORE}, more int not null", {}, ("more int32 NOT NULL", "begins=")),
    "not null that began": (
        f"{BEFORE}, more int not null",
        {"begins": {"it.more": None}},
        ("of 's'", "more int32 NOT NULL: null"),
    ),
    "a value of no such type": (f"{BEFORE}, more int", {"begins": {"it.more": "x"}}, ("more int32: 'x'",)),
    "null before": ("id int not null, day date, amt decimal(5,2), rate float", {}, ("id int32 NOT NULL", "id int32")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_with_both_sides(what: str) -> None:
    ddl, evolution, said = REFUSED[what]
    with pytest.raises(Unlike) as raised:
        migrations(value(BEFORE), value(ddl), Evolution(**evolution))
    told = f"{raised.value.what}: {raised.value.remedy}"
    assert all(each in told for each in ("'it'", *said)), told


MAP = StateDescription("m", "map", schema_of("n int"), schema_of("k int, at timestamp"))
OTHERS: dict[str, tuple[OperatorDescription, OperatorDescription, str]] = {
    "kind": (operator(), operator(kind="reduce"), "'reduce'"),
    "key": (operator(), operator(key=schema_of("key int")), "key int32"),
    "name of the key": (operator(), operator(key=schema_of("other string")), "other string"),
    "number of keys": (operator(), operator(key=pa.schema([])), "no key"),
    "narrower key": (operator(key=schema_of("key long")), operator(key=schema_of("key int")), "key int64"),
    "settings": (operator(settings={"times": "at"}), operator(settings={"times": "on"}), "times on"),
    "kind of state": (value("n int"), operator(StateDescription("s", "list", schema_of("n int"))), "'s' as a list"),
    "key of a map": (
        operator(MAP),
        operator(StateDescription("m", "map", MAP.value, schema_of("k string, at timestamp"))),
        "k string",
    ),
    "state": (value("n int"), operator(), "has the states "),
    "state of another name": (
        value("n int"),
        operator(StateDescription("t", "value", schema_of("n int"))),
        "has the states t",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_state_is_refused(what: str) -> None:
    before, now, said = OTHERS[what]
    with pytest.raises(Unlike, match="its state is of") as raised:
        migrations(before, now, Evolution())
    assert said in raised.value.what


def test_wider_keys_and_keys_of_maps_that_have_other_names_are_found() -> None:
    wider = StateDescription("m", "map", schema_of("n int"), schema_of("key long, time timestamp"))
    assert migrations(operator(MAP), operator(wider), Evolution()) == {}
    before, now = (operator(key=schema_of(f"key {kind}")) for kind in ("decimal(9,2)", "decimal(12,2)"))
    assert migrations(before, now, Evolution()) == {}


def test_states_and_uids_move_once() -> None:
    before, now = value("n int"), operator(StateDescription("t", "value", schema_of("n int")), uid="new")
    evolution = Evolution(uids={"it": "new"}, states={"new/s": "t"})
    (found,) = migrations(before, now, evolution).items()
    assert (found[0], found[1].target) == (SPEC, StateSpec("new", "t", StateKind.VALUE))
    assert found[1].values([(1,), None]) == [(1,), None]
    assert migrations(now, now, evolution) == {}
    two = operator(*now.states, StateDescription("s", "value", schema_of("n int")), uid="new")
    assert migrations(two, two, evolution) == {}, "a later state of the earlier name is another one"


def test_what_is_dropped() -> None:
    found = migrations(value("n int"), operator(), Evolution(drops={"it/s"}))
    assert found[SPEC].target is None
    assert migrations(value("n int"), value("n string"), Evolution(), {"s"})[SPEC].target is None


def aggregates(*of: tuple[str, str, str]) -> OperatorDescription:
    made = tuple(AggregateDescription(name, keeps, (f"{name}.{part}",)) for name, keeps, part in of)
    columns = schema_of(", ".join(f"`{each.columns[0]}` long" for each in made))
    return operator(StateDescription("s", "rows", columns), aggregates=made)


A, B, C = ("a", "sum(x)", "sum"), ("b", "max(x)", "max"), ("c", "sum(y)", "sum")


def columns(found: Migrations) -> list[tuple[str, int | None, Any]]:
    places: Any = found[StateSpec("it", "s", StateKind.ROWS)]
    return [(place.field.name, place.at, place.begins) for place in places.places]


def test_aggregates_are_matched_by_name_and_by_what_they_keep() -> None:
    assert columns(migrations(aggregates(A, B), aggregates(B, A), Evolution())) == [
        ("b.max", 1, None),
        ("a.sum", 0, None),
    ]
    assert migrations(aggregates(A, B), aggregates(("z", "sum(x)", "sum"), B), Evolution()) == {}
    swapped = aggregates(("a", "sum(y)", "sum"), ("c", "sum(x)", "sum"))
    assert columns(migrations(aggregates(A, C), swapped, Evolution())) == [("a.sum", 1, None), ("c.sum", 0, None)]
    added = migrations(aggregates(A), aggregates(C, A), Evolution(begins={"it.c": 7}))
    assert columns(added) == [("c.sum", None, 7), ("a.sum", 0, None)]
    assert columns(migrations(aggregates(A, C), aggregates(C), Evolution(drops={"it.a"}))) == [("c.sum", 1, None)]
    of_y = aggregates(("a", "sum(y)", "sum"))
    with pytest.raises(Unlike, match="a=sum"):
        migrations(aggregates(A), of_y, Evolution())
    assert migrations(aggregates(A), of_y, Evolution(columns={"it.a": "a"})) == {}
    with pytest.raises(Unlike, match="a=sum"):  # is another function
        migrations(aggregates(A), aggregates(("a", "max(x)", "max")), Evolution(columns={"it.a": "a"}))
    anew = Evolution(drops={"it.a"}, begins={"it.a": None})
    assert columns(migrations(aggregates(A), aggregates(("a", "max(x)", "max")), anew)) == [("a.max", None, None)]


WIDER = [
    (pa.int32(), pa.int64()),
    (pa.uint32(), pa.int64()),
    (pa.uint8(), pa.uint16()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(9, 2), pa.decimal128(10, 3)),
    (pa.date32(), pa.timestamp("us")),
    (pa.date32(), pa.timestamp("us", "UTC")),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.binary(4), pa.binary()),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.struct([("a", pa.date32())]), pa.struct([("a", pa.timestamp("us"))])),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
]
NOT_WIDER = [
    (pa.int32(), pa.float64()),
    (pa.int32(), pa.uint64()),
    (pa.uint64(), pa.int64()),
    (pa.decimal128(9, 2), pa.decimal128(9, 3)),
    (pa.date32(), pa.timestamp("us", "+05:00")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.string(), pa.binary()),
    (pa.list_(pa.int32()), pa.list_(pa.string())),
    (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
    (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
]


@pytest.mark.parametrize(("before", "now"), WIDER, ids=str)
def test_wider_types(before: pa.DataType, now: pa.DataType) -> None:
    assert is_widened(before, now) and not is_widened(now, before)
    pa.nulls(1, before).cast(now)


def test_texts_and_bytes_of_either_size_of_offsets_are_alike() -> None:
    for one, other in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        assert is_widened(one, other) and is_widened(other, one) and is_same_key(one, other)


@pytest.mark.parametrize(("before", "now"), NOT_WIDER, ids=str)
def test_types_that_are_not_wider(before: pa.DataType, now: pa.DataType) -> None:
    assert not is_widened(before, now)
    assert not is_same_key(before, now)
