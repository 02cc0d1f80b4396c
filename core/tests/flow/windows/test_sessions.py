"""Sessions equal a plain model: any rows, cuts, restores with other subtasks, late rows, and gaps of the rows' own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_rows import ROWS, time_of
from window_differential import epochs, equal
from window_model import Partitions, SessionModel
from window_subtasks import Subtasks, counted

from onefold.core import BadRecord, Upsert
from onefold.engine.logics.windows import span_log, spans
from onefold.engine.logics.windows.sessions import SessionLogic
from onefold.flow import EachEpoch, Flow, Session, bounded, count, first, max_, monotonic, sum_
from onefold.flow.testing import FlowTest

SECOND = 1_000_000
TIMED = ROWS.append(pa.field("gap", pa.duration("s")))


@pytest.fixture(autouse=True, scope="module")
def written_anew_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_log, "BLOCKS_MAX", 1)
        yield


@dataclass(frozen=True)
class Shape:
    """Sessions and clocks, in seconds. `gap`: None is that of the row's amount."""

    gap: int | None
    lateness: int
    results: str
    delay: int
    idle: int | None
    is_keyed: bool
    is_early: bool = False

    def flow(self) -> tuple[Flow, Any]:
        of = bounded("at", f"{self.delay} seconds", idle=None if self.idle is None else f"{self.idle} seconds")
        made = Flow("windows", max_parallelism=16)
        source: Any = AnySource("rows", TIMED, is_resolved=True)
        rows = made.source(source, uid="rows", watermarks=of)
        options: Any = {"lateness": f"{self.lateness} seconds", "late": "late", "results": self.results}
        window = Session(pc.field("gap") if self.gap is None else f"{self.gap} seconds")
        trigger = EachEpoch() if self.is_early else None
        windowed = (rows.key_by("key") if self.is_keyed else rows).window(window, trigger=trigger, **options)
        fired = windowed.aggregate(uid="sums", total=sum_("amount"), n=count(), most=max_("amount"))
        fired.map_batches(lambda batch: batch).sink(AnySink("fired"))
        fired.side("late").map_batches(lambda batch: batch).sink(AnySink("late"))
        return made, of

    def model(self) -> SessionModel:
        times = Partitions(self.delay * SECOND, None if self.idle is None else self.idle * 1_000)
        gap_us = None if self.gap is None else self.gap * SECOND
        return SessionModel(
            gap_us,
            self.lateness * SECOND,
            results=self.results,
            is_keyed=self.is_keyed,
            times=times,
            is_early=self.is_early,
        )


SHAPES = st.builds(
    Shape,
    gap=st.sampled_from([None, 1, 2, 5, 12]),
    lateness=st.sampled_from([0, 0, 3, 20]),
    results=st.sampled_from(["accumulating", "retracting"]),
    delay=st.sampled_from([0, 2]),
    idle=st.sampled_from([None, 3]),
    is_keyed=st.booleans(),
    is_early=st.booleans(),
)
ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-20, 40), st.integers(-2, 2), st.integers(1, 9))
COMMON = {"given_": epochs(ROW), "subtasks": st.lists(st.sampled_from([None, 1, 2, 3, -1, -2]), max_size=5)}
COMMON |= {"batch_rows": st.sampled_from([1, 3, 1_000]), "ends": st.booleans(), "columns": st.just(TIMED)}


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_sessions_in_memory_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "memory", **given_)


@settings(max_examples=8, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_sessions_in_rocksdb_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "rocksdb", **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb", "spark"])
@settings(max_examples=500, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_many_sessions_equal_the_model(backend: str, shape: Shape, **given_: Any) -> None:
    equal(shape, backend, **given_)


@pytest.mark.slow
def test_case_45_sessions_of_100000_keys_in_any_order_equal_the_model(tmp_path: Path) -> None:
    shape = Shape(gap=3, lateness=1, results="retracting", delay=0, idle=None, is_keyed=True)
    (made, watermarks), model, rng = shape.flow(), shape.model(), np.random.default_rng(45)
    run = Subtasks(made, watermarks, tmp_path, "memory", 2, columns=TIMED)
    for number in range(4):
        keys, seconds = rng.permutation(100_000), rng.integers(0, 24, 100_000) / 2
        rows = [
            (f"{key}", time_of(6 * number + at), 1, 1) for key, at in zip(keys.tolist(), seconds.tolist(), strict=True)
        ]
        found, late = run.epoch({"p": rows}, number, is_last=number == 3, batch_rows=20_000)
        expected, expected_late = model.epoch({"p": rows}, number, number == 3)
        assert counted(found) == counted(expected)
        assert len(late) == len(expected_late)
        assert found and (late or number == 0)
        run.restore(1 + number % 3)
    assert run.kept() == []
    run.close()


def session_flow(gap: Any, aggregate: Any, lateness: str = "0 seconds") -> Flow:
    made = Flow("windows", max_parallelism=16)
    source: Any = AnySource("rows", TIMED, is_resolved=True)
    rows = made.source(source, uid="rows", watermarks=monotonic("at", idle=None)).key_by("key")
    again: Any = Upsert(("key", "window_start"), ("emission",), "retracts") if lateness != "0 seconds" else None
    rows.window(Session(gap), lateness=lateness).aggregate(uid="n", n=aggregate).sink(AnySink("fired", replaces=again))
    return made


@pytest.mark.parametrize("gap_s", [None, 0, -3, 2**58 + 1])
def test_a_row_without_a_gap_is_told(gap_s: int | None) -> None:
    test = FlowTest(session_flow(pc.field("gap"), count()))
    columns = [pa.array([value], field.type) for value, field in zip(("a", time_of(1), 1, gap_s), TIMED, strict=True)]
    with raises(BadRecord, "session-gap", "'gap'"):
        test.epoch({"rows": pa.RecordBatch.from_arrays(columns, schema=TIMED)})
    test.close()


def test_sums_of_floats_are_the_same_after_a_restart() -> None:
    """A replay of an epoch begins with a restore: what is kept is what was in memory, to the last digit."""
    found = []
    for restores in (False, True):
        made = Flow("windows")
        schema = pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC"), "amount": pa.float64()})
        source: Any = AnySource("rows", schema, is_resolved=True)
        rows = made.source(source, uid="rows", watermarks=monotonic("at")).key_by("key").window(Session("1 minute"))
        rows.aggregate(uid="n", n=sum_("amount"), first=first("amount")).sink(AnySink("fired"))
        test = FlowTest(made)
        for number in range(12):
            timed = [(key, time_of(number + at), 0.1 * (number + 1) * at) for at in (0.1, 0.7, 0.3) for key in "ab"]
            test.epoch({"rows": timed})
            if restores:
                test.restore()
        found.append(test.epoch(ended=["rows"])["fired"])
        test.close()
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_sessions_of_many_keys_and_far_times_are_apart() -> None:
    """Where keys times times leave 64 bits, sessions are found by order."""
    rng = np.random.default_rng(3)
    starts = rng.integers(-(2**61), 2**61, 2_000)
    starts[::2] = starts[1::2] + rng.integers(-3, 4, 1_000)
    keys, ends = rng.integers(0, 3, 2_000), starts + rng.integers(1, 3, 2_000)
    keys[::2] = keys[1::2]
    numbers, firsts = spans.sessions_of([pa.array(keys)], starts, ends)
    found = sorted((key, int(firsts[at])) for key, at in {*zip(keys.tolist(), numbers.tolist(), strict=True)})
    expected: list[tuple[int, int]] = []
    reach = dict.fromkeys(range(3), -(2**63))
    for start, end, key in sorted(zip(starts.tolist(), ends.tolist(), keys.tolist(), strict=True)):
        if start > reach[key]:
            expected.append((key, start))
        reach[key] = max(reach[key], end)
    assert found == sorted(expected)
    assert 1_000 < len(found) < 2_000


def test_what_is_kept_of_sessions_is_little_more_than_what_is_open(tmp_path: Path) -> None:
    run = Subtasks(session_flow("5 seconds", count(), "1 minute"), monotonic("at", idle=None), tmp_path, "memory")
    run._columns = TIMED
    for second in range(60):
        run.epoch({"p": [(key, time_of(second * 10), 1, 1) for key in "abc"]}, second)
    logic = run.logics[0]
    assert isinstance(logic, SessionLogic)
    assert len(logic._open.rows) == 3 * 7
    assert len(logic._fired.rows) == 3 * 6
    assert logic._open._logged <= 2 * len(logic._open.rows) + 3
    assert logic._fired._logged <= 2 * len(logic._fired.rows) + 3
    run.close()


def test_an_epoch_groups_rows_of_its_own_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sessions are open, or have come out and may come again."""
    run = Subtasks(session_flow("5 seconds", count(), "1 hour"), monotonic("at", idle=None), tmp_path, "memory")
    run._columns = TIMED
    keys = ["early", *map(str, range(1_000))]
    run.epoch({"p": [(key, time_of(10 * (key != "early")), 1, 1) for key in keys]}, 1)
    run.epoch({"p": [("x", time_of(100), 1, 1)]}, 2)
    grouped: list[int] = []
    key_numbers = spans.key_numbers
    monkeypatch.setattr(spans, "key_numbers", lambda keys, rows: grouped.append(rows) or key_numbers(keys, rows))
    results, _ = run.epoch({"p": [("7", time_of(13), 1, 1), ("x", time_of(101), 1, 1)]}, 3)
    assert [row["emission"] for row in results] == [2]
    run.epoch({"p": [("x", time_of(3_606), 1, 1)]}, 4)  # here the early one closes
    logic = run.logics[0]
    assert isinstance(logic, SessionLogic)
    assert len(logic._fired.rows) == 1_000 + 1
    assert 0 < max(grouped) < 20
    run.close()


def test_a_result_that_python_cannot_hold_is_compared() -> None:
    made = Flow("windows")
    schema = pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC"), "times": pa.list_(pa.timestamp("us"))})
    source: Any = AnySource("rows", schema, is_resolved=True)
    rows = made.source(source, uid="rows", watermarks=monotonic("at")).key_by("key")
    windowed = rows.window(Session("3 seconds"), lateness="1 minute", results="retracting")
    windowed.aggregate(uid="n", first=first("times")).select("key", "emission", "retracts").sink(AnySink("fired"))
    test = FlowTest(made)
    found = []
    for second in (0, 5, 0, 1):  # the year 75,000
        times = pa.array([[2**61]], pa.list_(pa.int64())).cast(schema.field("times").type)
        row = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([time_of(second)]), times], schema=schema)
        found.append([(row["emission"], row["retracts"]) for row in test.epoch({"rows": row})["fired"]])
    test.close()
    assert found == [[], [(1, False)], [], [(2, True), (2, False)]]
