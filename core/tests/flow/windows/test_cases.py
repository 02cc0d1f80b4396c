"""Firings and late rows of each epoch, by windows of ten seconds, and of others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from harness.renewing import assert_renewed
from timed_rows import EPOCH, epochs_of, time_of
from window_cases import (
    A_BIT_LATER,
    AHEAD,
    CASES,
    EVER,
    FAR_LATER,
    GAP,
    GAP_5,
    IDLE,
    LATE,
    LATER,
    PANES,
    TEN,
    TWENTY,
    EmptiesAtEnd,
    OnceEarly,
    by_test,
    flow,
    in_order,
    numbered,
    source,
    told,
)
from window_subtasks import Subtasks, counted

from onefold.core import BadRecord, CheckpointMismatch, Upsert
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.storage import Storage
from onefold.engine.workers.snapshots import restore
from onefold.flow import EachEpoch, Every, Flow, KeepLast, Rows, Session, Sliding, Tumbling, Watermarks, count, sum_
from onefold.flow.testing import FlowTest

FIRING_AGAIN = [each for each in CASES if (found := re.match(r"\d+", str(each.id))) and 25 <= int(found[0]) <= 71]
PAGE = Path(__file__).parents[4] / "docs/windows.md"


def by_flow(made: Flow, text: str, restores: bool) -> Iterator[list[str]]:
    return by_test(FlowTest(made, at=EPOCH), text, restores)


def by_subtasks(run: Subtasks, text: str) -> Iterator[list[str]]:
    """The same, by another number of subtasks in each epoch."""
    for number, epoch in enumerate(epochs_of(text)):
        results, late = run.epoch(epoch.rows, epoch.now_s, epoch.is_last, batch_rows=1)
        yield [told(row) for row in [*sorted(results, key=_as_they_come), *late]]
        run.restore(1 + number % 3)


def _as_they_come(row: dict[str, Any]) -> tuple[Any, ...]:
    times = (row["window_end"], row["window_start"]) if "window_end" in row else ()
    return not row.get("retracts", False), *times


@pytest.mark.parametrize("by_elements", [False, True], ids=["", "by elements"])
@pytest.mark.parametrize("restores", [False, True], ids=["", "restarts between all epochs"])
@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), CASES)
def test_case(
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
    restores: bool,
    by_elements: bool,
) -> None:
    """Whatever is made by slices is the same where all rows are kept."""
    found = numbered(by_flow(flow(watermarks, window, given, by_elements=by_elements), text, restores))
    assert {epoch: in_order(out) for epoch, out in found.items()} == {
        epoch: in_order(out) for epoch, out in expected.items()
    }


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), CASES)
def test_case_in_workers(
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
    backend: str,
    tmp_path: Path,
) -> None:
    """12 and 13: some of them without a partition, another number from epoch to epoch."""
    run = Subtasks(flow(watermarks, window, given), watermarks, tmp_path, backend, 3)
    found = numbered(by_subtasks(run, text))
    assert {epoch: sorted(out) for epoch, out in found.items()} == {
        epoch: sorted(out) for epoch, out in expected.items()
    }
    assert "END" not in text or run.kept() == []
    run.close()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), FIRING_AGAIN)
def test_case_81_a_kill_before_and_one_after_the_decision_leave_each_firing_once(
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
    backend: str,
    tmp_path: Path,
) -> None:
    """In each epoch: what an attempt gave that was not decided comes again, the same; what was decided does not."""
    run = Subtasks(flow(watermarks, window, given), watermarks, tmp_path, backend, 2)
    found = []
    for number, epoch in enumerate(epochs_of(text)):
        first = run.epoch(epoch.rows, epoch.now_s, epoch.is_last, batch_rows=1)
        run.die(1 + number % 3)
        again = run.epoch(epoch.rows, epoch.now_s, epoch.is_last)
        assert [counted(of) for of in again] == [counted(of) for of in first]
        found.append([told(row) for of in again for row in of])
        run.restore(1 + (number + 1) % 3)
    assert {epoch: sorted(out) for epoch, out in numbered(found).items()} == {
        epoch: sorted(out) for epoch, out in expected.items()
    }
    run.close()


def test_case_44_each_row_says_how_far_it_reaches() -> None:
    made = Flow("windows")
    rows = source(made).with_columns(gap=pc.field("amount").cast(pa.duration("s"))).key_by("key")
    rows.window(Session(pc.field("gap"))).aggregate(uid="sums", total=count()).sink(AnySink("fired"))
    found = numbered(by_flow(made, "a@0=3 a@2=10 | a@11=1 | a@13=1 END", restores=True))
    assert found == {"N3": ["a[0,12)=3", "a[13,14)=1"]}


def test_case_6_a_partition_that_never_had_a_record_holds_all_windows() -> None:
    test = FlowTest(flow(EVER, TEN, {}))
    assert test.epoch({"rows/p": [("a", time_of(25), 1)], "rows/q": []}) == {"fired": [], "late": []}
    assert test.epoch({"rows/p": [("a", time_of(31), 1)]}) == {"fired": [], "late": []}
    assert test.watermark("sums") is None
    test.close()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("by_elements", [False, True], ids=["by slices", "by elements"])
def test_case_31_a_window_that_ends_and_closes_in_one_epoch_leaves_nothing(
    tmp_path: Path, backend: str, by_elements: bool
) -> None:
    run, left = Subtasks(flow(EVER, TEN, LATE, by_elements), EVER, tmp_path, backend), []
    for second in (1, 100):
        run.epoch({"p": [("a", time_of(second), 1)]}, 1)
        left.append(len(run.kept()))
    assert left == [1 + by_elements] * 2, "of one window: its states; or what is remembered of it, and its rows"
    assert by_elements or run.kept()[0][0] == 100_000_000
    run.close()


@pytest.mark.parametrize("cuts", [(7,), (3, 4), (1,) * 7], ids=str)
def test_case_46_windows_of_rows_are_the_same_for_any_cuts(cuts: tuple[int, ...]) -> None:
    seconds = iter(range(7))
    text = " | ".join(" ".join(f"a@{next(seconds)}" for _ in range(rows)) for rows in cuts)
    found = by_flow(flow(EVER, Rows(3), {}), f"{text} END", restores=True)
    assert [each for out in found for each in out] == ["a:0=3", "a:1=3", "a:2=1"]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_case_52_rows_of_no_key_are_in_one_task(tmp_path: Path, backend: str) -> None:
    made = Flow("windows", max_parallelism=16)
    source(made).window(TEN).aggregate(uid="sums", total=sum_("amount")).sink(AnySink("fired"))
    run = Subtasks(made, EVER, tmp_path, backend, 3)
    rows = [(str(number), time_of(number % 20), 1) for number in range(1_000)]
    results, _ = run.epoch({"p": rows}, 1, batch_rows=100)
    assert [told(row) for row in results] == ["[0,10)=500"]
    run.restore(2)
    results, _ = run.epoch({"p": [("a", time_of(20), 1)]}, 2)
    assert [told(row) for row in results] == ["[10,20)=500"]
    assert [len(logic._slices.between(-1, 2**62)) for logic in run.logics] == [1, 0]
    run.close()


def cascade(hour: Any, of: Any = TEN) -> Flow:
    """Ten seconds, or others, into a minute."""
    made = Flow("windows")
    tens = source(made).key_by("key").window(of).aggregate(uid="tens", total=sum_("amount"))
    minutes = tens.key_by("key").window(hour, late="late").aggregate(uid="minutes", total=sum_("total"))
    minutes.sink(AnySink("fired"))
    minutes.side("late").map_batches(lambda batch: batch.select(["key"])).sink(AnySink("late"))
    return made


@pytest.mark.parametrize("restores", [False, True], ids=["", "restarts between all epochs"])
def test_case_53_a_window_of_windows_has_all_of_them_in_the_epoch_of_the_last(restores: bool) -> None:
    text = "a@1 a@11 | a@59 b@13 | a@60 a@61 | a@119 | a@130 | END"
    expected = {"N3": ["a[0,60)=3", "b[0,60)=1"], "N5": ["a[60,120)=3"], "N6": ["a[120,180)=1"]}
    found = numbered(by_flow(cascade(Tumbling("1 minute")), text, restores))
    assert {epoch: sorted(out) for epoch, out in found.items()} == expected
    sliding = numbered(by_flow(cascade(Sliding("20 seconds", "10 seconds")), "a@1 a@11 | a@30 | END", restores))
    assert sliding == {"N1": ["a[-10,10)=1"], "N2": ["a[0,20)=2", "a[10,30)=1"], "N3": ["a[20,40)=1", "a[30,50)=1"]}


@pytest.mark.parametrize("restores", [False, True], ids=["", "restarts between all epochs"])
def test_a_window_of_sessions_has_one_that_ends_where_the_watermark_stays(restores: bool) -> None:
    text = "a@7 | b@10 | b@11 | b@14.5 | END"
    found = numbered(by_flow(cascade(TEN, Session("3 seconds")), text, restores))
    assert found == {"N5": ["a[10,20)=1", "b[10,20)=3"]}


@pytest.mark.parametrize("cuts", [1, 7])
def test_case_76_bounded_input_gives_one_table_for_any_cuts(cuts: int) -> None:
    rows = [f"a@{second}={second}" for second in range(98)]
    per_epoch = -(-len(rows) // cuts)
    epochs = [" ".join(rows[at : at + per_epoch]) for at in range(0, len(rows), per_epoch)]
    found = by_flow(flow(EVER, TEN, {}), " | ".join(epochs) + " END", restores=True)
    expected = [f"a[{at},{at + 10})={sum(range(at, min(at + 10, 98)))}" for at in range(0, 98, 10)]
    assert [each for out in found for each in out] == expected


def test_case_78_a_flow_that_is_stopped_leaves_its_windows_open() -> None:
    found = numbered(by_flow(flow(EVER, TEN, {}), "a@1 | | a@2 | a@10", restores=True))
    assert found == {"N4": ["a[0,10)=2"]}


TIMES: dict[str, tuple[pa.DataType, int, str]] = {
    "nanoseconds, cut downwards": (pa.timestamp("ns"), -1, "[-10,0)=1"),
    "milliseconds": (pa.timestamp("ms"), 10_000, "[10,20)=1"),
    "seconds of a zone, which are instants": (pa.timestamp("s", "Asia/Tokyo"), 9, "[0,10)=1"),
    "a day": (pa.date32(), 1, "[86400,86410)=1"),
    "a day in milliseconds": (pa.date64(), 86_400_000, "[86400,86410)=1"),
}


@pytest.mark.parametrize("what", TIMES)
def test_case_80_times_of_any_type_are_microseconds(what: str) -> None:
    kind, value, expected = TIMES[what]
    number = pa.array([value], pa.int32() if pa.types.is_date32(kind) else pa.int64())
    rows = pa.RecordBatch.from_arrays([number.cast(kind)], ["at"])
    made = Flow("windows")
    given: Any = AnySource("rows", rows.schema, is_resolved=True)
    stream = made.source(given, uid="rows", watermarks=EVER)
    stream.window(TEN).aggregate(uid="n", total=count()).sink(AnySink("fired"))
    test = FlowTest(made)
    (row,) = test.epoch({"rows": rows}, ended=["rows"])["fired"]
    zone = getattr(kind, "tz", None)
    assert row["window_start"].tzinfo == (None if zone is None else ZoneInfo(zone))
    as_utc = {name: value.replace(tzinfo=value.tzinfo or UTC) for name, value in row.items() if name != "total"}
    assert told({**as_utc, "total": row["total"]}) == expected
    test.close()


def test_case_80_a_row_without_a_time_and_one_that_is_too_far_away_are_told() -> None:
    seconds = pa.timestamp("s")
    for value, kind, code in (
        (None, seconds, "event-time-null"),
        (2**50, seconds, "event-time-range"),
        (-(2**43), seconds, "event-time-range"),
        (-(2**63), pa.timestamp("us"), "event-time-range"),
    ):
        far = pa.schema({"at": pa.timestamp("us"), "other": kind})
        made = Flow("windows")
        given: Any = AnySource("rows", far, is_resolved=True)
        stream = made.source(given, uid="rows", watermarks=EVER).window(TEN, on="other")
        stream.aggregate(uid="n", n=count()).sink(AnySink("fired"))
        test = FlowTest(made)
        times = [pa.array([0], far.field(0).type), pa.array([value], pa.int64()).cast(kind)]
        rows = pa.RecordBatch.from_arrays(times, schema=far)
        with raises(BadRecord, code, "'other'"):
            test.epoch({"rows": rows})
        test.close()


KEYS: dict[pa.DataType, Any] = {
    pa.decimal32(5, 2): Decimal("1.50"),
    pa.decimal64(5, 2): Decimal("1.50"),
    pa.decimal128(5, 2): Decimal("1.50"),
    pa.decimal256(40, 2): Decimal("1.50"),
    pa.large_string(): "a",
    pa.binary(2): b"ab",
    pa.bool_(): True,
    pa.uint8(): 3,
    pa.date32(): date(2026, 1, 1),
    pa.time64("us"): time(1),
    pa.timestamp("us", "UTC"): datetime(2026, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_a_window_fires_again_for_keys_of_any_type_and_for_null(kind: pa.DataType) -> None:
    schema = pa.schema({"key": kind, "other": kind, "at": pa.timestamp("us", "UTC")})
    made = Flow("windows")
    given: Any = AnySource("rows", schema, is_resolved=True)
    windowed = made.source(given, uid="rows", watermarks=EVER).key_by("key", "other").window(TEN, lateness="1 minute")
    fired = windowed.aggregate(uid="n", n=count())
    fired.sink(AnySink("fired", replaces=Upsert(("key", "other", "window_start"))))
    test, key = FlowTest(made), KEYS[kind]
    found = []
    for rows in ([(key, None, 1), (None, key, 2), (None, None, 3), (key, key, 11)], [(None, key, 4), (key, None, 5)]):
        timed = [(*of, time_of(second)) for *of, second in rows]
        found.append(
            [(row["key"], row["other"], row["n"], row["emission"]) for row in test.epoch({"rows": timed})["fired"]]
        )
    assert Counter(found[0]) == Counter([(key, None, 1, 1), (None, key, 1, 1), (None, None, 1, 1)])
    assert Counter(found[1]) == Counter([(key, None, 2, 2), (None, key, 2, 2)])
    test.close()


Declared = tuple[Any, dict[str, Any]]
OTHERS: dict[str, tuple[Declared, Declared]] = {
    "size": ((TEN, {}), (Tumbling("20 seconds"), {})),
    "slide": ((TEN, {}), (Sliding("10 seconds", "5 seconds"), {})),
    "offset": ((TEN, {}), (Tumbling("10 seconds", offset="1 second"), {})),
    "kind": ((TEN, {}), (Session("10 seconds"), {})),
    "trigger": ((TEN, {}), (TEN, {"trigger": EachEpoch()})),
    "interval": ((TWENTY, {"trigger": PANES}), (TWENTY, {"trigger": Every("10 seconds")})),
    "what is kept of results": ((TEN, {}), (TEN, {"results": "retracting"})),
    "gap": ((GAP, {}), (GAP_5, {})),
    "rows that are kept as states, now one by one": ((TEN, {}), (TEN, {"evictor": KeepLast(5)})),
    "a trigger of one's own": ((TEN, {"trigger": OnceEarly()}), (TEN, {"trigger": EmptiesAtEnd()})),
    "number": ((Rows(3), {}), (Rows(4), {})),
    "zone": ((Tumbling("1 day", zone="Europe/Berlin"), {}), (Tumbling("1 day", zone="Europe/Paris"), {})),
    "clock": ((TEN, {}), (Tumbling("10 seconds", clock="processing"), {})),
    "sessions that come again, now once": ((GAP, LATE), (GAP, {})),
    "sessions that come once, now again": ((GAP, {}), (GAP, LATE)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_case_82_state_of_other_windows_is_refused(tmp_path: Path, what: str) -> None:
    """A session that has come out, and goes on when its lateness is taken away, would come once more."""
    graphs = [flow(EVER, of, options).graph() for of, options in OTHERS[what]]
    storage = Storage(str(tmp_path), "windows")
    first, second = (next(each for each in graph.nodes if each.uid == "sums") for graph in graphs)
    backend = MemoryBackend(storage, 1)
    restore(backend, storage, graphs[0], first, [], range(128))
    handle = backend.freeze(1).store()
    with raises(CheckpointMismatch, "state-operator-changed"):
        restore(MemoryBackend(storage, 2), storage, graphs[1], second, [handle], range(128))


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_case_82_a_longer_lateness_opens_no_window_again_and_a_shorter_one_closes_them(
    tmp_path: Path, backend: str
) -> None:
    def run(lateness: str, *epochs: str) -> Iterator[list[str]]:
        made.change(flow(EVER, TEN, {"lateness": lateness}))
        for text in epochs:
            (epoch,) = epochs_of(text)
            results, late = made.epoch(epoch.rows, 1)
            yield [told(row) for row in (*results, *late)]

    made = Subtasks(flow(EVER, TEN, {"lateness": "1 second"}), EVER, tmp_path, backend)
    assert [*run("1 second", "a@5", "a@11", "a@6")] == [[], ["a[0,10)=1"], ["late a@6"]]
    assert [*run("20 seconds", "a@7", "b@21", "b@12")] == [["late a@7"], ["a[10,20)=1"], ["b[10,20)=1"]]
    assert [*run("20 seconds", "b@13")] == [["b[10,20)=2#2"]]
    assert [*run("1 second", "b@14", "b@15")] == [["b[10,20)=3#3"], ["late b@15"]]
    assert [*run("20 seconds", "b@22", "b@31", "b@23")] == [[], ["b[20,30)=2"], ["b[20,30)=3#2"]]
    assert [*run("0 seconds", "b@24", "b@41")] == [["late b@24"], ["b[30,40)=1"]]  # its results have no emission
    made.close()


def told_setup(watermarks: Watermarks, window: Any, given: dict[str, Any]) -> str:
    told: dict[Any, str] = {IDLE: "idle 60 seconds", LATER: "delay 5 seconds", A_BIT_LATER: "delay 1.1 seconds"}
    told |= {FAR_LATER: "delay 10 seconds", AHEAD: "at most 1 hour ahead", None: "no watermarks"}
    clocks, kind = told.get(watermarks), "sessions with gaps of" if isinstance(window, Session) else "windows of"
    windows = None if window == TEN else f"{kind} {window}"
    return ", ".join(filter(None, (clocks, windows, *(f"{name} {value}" for name, value in given.items()))))


@pytest.mark.docs
def test_the_page_has_the_cases() -> None:
    lines = ["| Case | Setup | Input | Comes out |", "| --- | --- | --- | --- |"]
    for each in CASES:
        watermarks, window, given, text, expected = each.values
        told_out = "; ".join(f"{epoch}: {' '.join(out)}" for epoch, out in expected.items())
        escaped = text.replace("|", "\\|")
        lines.append(f"| {each.id} | {told_setup(watermarks, window, given)} | `{escaped}` | {told_out} |")
    assert_renewed(PAGE, "test_cases.py", "\n".join(lines))
