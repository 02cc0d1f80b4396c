"""Operators without state, on batches: the same as a plain Python function on each row."""

from __future__ import annotations

from decimal import Decimal
from itertools import count as count_from
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import ORDERS, node_of, orders
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core import BadRecord, ConfigError, InternalError
from onefold.flow import Side, Stream, count
from onefold.flow.evaluation import evaluation
from onefold.flow.processing.rows import BATCH_ROWS_MAX, dicts_of, row_type, values_of

Rows = list[dict[str, Any]]

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(-(2**40), 2**40),
            "account": st.none() | st.integers(0, 3),
            "amount": st.none() | st.decimals(-(10**9), 10**9, places=2),
            "weight": st.none() | st.floats(allow_nan=False),
            "note": st.none() | st.text(max_size=3),
        }
    ),
    max_size=20,
)


def outputs(stream_of: Any, rows: Rows, schema: pa.Schema = ORDERS) -> dict[str | None, Rows]:
    """What the operator of a stream makes of rows, by output."""
    flow, stream = orders(schema)
    evaluate = evaluation(node_of(flow, stream_of(stream)))
    found: dict[str | None, Rows] = {}
    for output, batch in evaluate(pa.RecordBatch.from_pylist(rows, schema)):
        assert batch.num_rows
        found.setdefault(output, []).extend(batch.to_pylist())
    return found


@settings(deadline=None)
@given(ROWS)
def test_filter_keeps_the_rows_for_which_the_condition_is_true(rows: Rows) -> None:
    condition = (pc.field("amount") > Decimal("1.50")) | (pc.field("account") == 2)
    kept = outputs(lambda stream: stream.filter(condition), rows).get(None, [])

    assert kept == [row for row in rows if _either(row)]


def _either(row: dict[str, Any]) -> bool:
    """pyarrow's `|`: true or null is true, and false or null is null, which is not kept."""
    return (row["amount"] is not None and row["amount"] > Decimal("1.50")) or row["account"] == 2


@settings(deadline=None)
@given(ROWS)
def test_select_and_with_columns_compute_each_row_by_itself(rows: Rows) -> None:
    def computed(stream: Stream) -> Stream:
        return stream.with_columns(
            id=pc.field("account"),
            more=pc.field("id") + pc.field("account"),
            sign=pc.if_else(pc.is_valid(pc.field("note")), pc.field("note"), pc.scalar("none")),
            one=pc.scalar(1),
        )

    def more(row: dict[str, Any]) -> int | None:
        return None if None in (row["id"], row["account"]) else row["id"] + row["account"]

    made = outputs(computed, rows).get(None, [])
    assert made == [
        {**row, "id": row["account"], "more": more(row), "sign": row["note"] if row["note"] is not None else "none"}
        | {"one": 1}
        for row in rows
    ]
    assert outputs(lambda stream: stream.select("note", n=pc.field("id")), rows).get(None, []) == [
        {"note": row["note"], "n": row["id"]} for row in rows
    ]


@settings(deadline=None)
@given(ROWS)
def test_map_batches_gives_what_its_function_gives_to_main_and_side_outputs(rows: Rows) -> None:
    def function(batch: pa.RecordBatch) -> Any:
        yield batch.select(["id"])
        yield pa.Table.from_batches([batch.select(["id"])])
        yield Side("notes", batch.select(["note"]))

    found = outputs(lambda s: s.map_batches(function, sides={"notes": "note string"}), rows)
    ids = [{"id": row["id"]} for row in rows]
    assert found.get(None, []) == ids * 2
    assert found.get("notes", []) == [{"note": row["note"]} for row in rows]


@settings(deadline=None)
@given(ROWS)
def test_flat_map_gives_the_rows_that_its_function_gives_of_each_row(rows: Rows) -> None:
    def function(row: dict[str, Any]) -> Any:
        if row["account"] is None:
            yield Side("odd", row)
        for number in range(row["account"] or 0):
            yield {"id": row["id"], "number": number}
        yield (row["id"], None)

    found = outputs(lambda s: s.flat_map(function, "id long, number int", sides={"odd": ORDERS}), rows)
    expected = [{"id": row["id"], "number": number} for row in rows for number in (*range(row["account"] or 0), None)]
    assert found.get(None, []) == expected
    assert found.get("odd", []) == [row for row in rows if row["account"] is None]


def test_a_flat_map_gives_batches_of_bounded_size() -> None:
    flow, stream = orders()
    node = node_of(flow, stream.flat_map(lambda row: ({"id": n} for n in range(row["id"])), "id long"))
    rows = pa.RecordBatch.from_pylist([{"id": 20_000}] * 3, ORDERS)
    sizes = [batch.num_rows for _, batch in evaluation(node)(rows)]
    assert sizes == [BATCH_ROWS_MAX, 60_000 - BATCH_ROWS_MAX]


def test_a_function_of_rows_that_goes_on_without_an_end_gives_batches_all_the_same() -> None:
    flow, stream = orders()
    node = node_of(flow, stream.flat_map(lambda _: ({"id": n} for n in count_from(0)), "id long"))
    found = evaluation(node)(pa.RecordBatch.from_pylist([{"id": 1}], ORDERS))
    assert [batch.num_rows for _, batch in islice(found, 3)] == [BATCH_ROWS_MAX] * 3


def test_a_function_of_rows_may_give_none() -> None:
    assert outputs(lambda s: s.flat_map(lambda _: None, "id long"), [{"id": 1}]) == {}


def test_a_batch_in_is_one_batch_out() -> None:
    rows = pa.RecordBatch.from_pydict({"id": range(200_000)}, pa.schema({"id": pa.int64()}))
    for stream_of in (lambda s: s.filter(pc.field("id") >= 7), lambda s: s.with_columns(more=pc.field("id") + 1)):
        flow, stream = orders(rows.schema)
        (found,) = evaluation(node_of(flow, stream_of(stream)))(rows)
        first = 200_000 - found[1].num_rows
        assert first in (0, 7) and found[1].column("id").to_pylist() == [*range(first, 200_000)]


@pytest.mark.parametrize("rows", [[], [{"id": None}]])
def test_no_batch_comes_out_empty(rows: Rows) -> None:
    assert outputs(lambda stream: stream.filter(pc.field("id") > 1), rows) == {}


def test_a_union_gives_its_own_schema() -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    flow, stream = orders(columns)
    (found,) = evaluation(node_of(flow, stream.union(stream.filter(pc.field("id") > 1))))(
        pa.RecordBatch.from_pylist([{"id": 1}], pa.schema({"id": pa.int64()}))
    )
    assert found[1].schema == columns


FAILS: dict[str, tuple[Any, type[Exception], str]] = {
    "an overflow": (lambda s: s.with_columns(x=pc.field("id") * pa.scalar(2**62)), BadRecord, "expression-fails"),
    "a filter's overflow": (lambda s: s.filter(pc.field("id") * pa.scalar(2**62) > 1), BadRecord, "expression-fails"),
    "a value of another type": (lambda s: s.flat_map(lambda _: [{"id": "x"}], "id long"), BadRecord, "function-value"),
    "a decimal of more places": (
        lambda s: s.flat_map(lambda _: [(Decimal("1.555"),)], "a decimal(9,2)"),
        BadRecord,
        "function-value",
    ),
    "an unknown column": (lambda s: s.flat_map(lambda _: [{"idd": 1}], "id long"), ConfigError, "function-row"),
    "a tuple of another length": (lambda s: s.flat_map(lambda _: [(1, 2)], "id long"), ConfigError, "function-row"),
    "no row": (lambda s: s.flat_map(lambda _: [None], "id long"), ConfigError, "function-row"),
    "an undeclared side": (
        lambda s: s.flat_map(lambda _: [Side("x", (1,))], "id long"),
        ConfigError,
        "side-not-declared",
    ),
    "no batch": (lambda s: s.map_batches(lambda b: None if b.num_rows else b), ConfigError, "function-schema"),
    "another schema with rows": (
        lambda s: s.map_batches(lambda b: b.select(["id"] if b.num_rows else ["note"])),
        ConfigError,
        "function-schema",
    ),
}


@pytest.mark.parametrize("what", FAILS)
def test_a_record_that_fails_is_a_named_error(what: str) -> None:
    stream_of, kind, code = FAILS[what]
    with pytest.raises(kind) as failed:
        outputs(stream_of, [{"id": 2}])
    assert failed.value.code == code  # type: ignore[attr-defined]


def test_what_a_function_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        outputs(lambda s: s.flat_map(lambda row: [(1 // row["account"],)], "id long"), [{"account": 0}])


def test_an_operator_with_state_has_no_evaluation() -> None:
    flow, stream = orders()
    stream.key_by("id").aggregate(uid="n", n=count())
    with pytest.raises(InternalError):
        evaluation(flow._nodes.made[-1])


def test_rows_have_their_columns_as_attributes_by_index_and_by_name() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 1, "count": 2, "a b": "x"}])
    (row,) = map(row_type(batch.schema.names), values_of(batch))
    assert (row.id, row[1], row["count"], row["a b"], row[-1], row[:2]) == (1, 2, 2, "x", "x", (1, 2))
    assert row == (1, 2, "x") and row.asDict() == {"id": 1, "count": 2, "a b": "x"}
    assert list(dicts_of(batch)) == [row.asDict()]
    with pytest.raises(KeyError):
        row["ID"]
