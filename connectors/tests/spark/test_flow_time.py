"""Event time on Spark, as Spark calls it: the cases of windows and timers that the engine has, epoch by epoch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import join_cases
import pytest
import timer_cases
import window_cases
from flow_parts import AnySink
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spark_model import SparkTest
from timed_rows import epochs_of, time_of

from onefold.core import Upsert
from onefold.flow import (
    EachEpoch,
    Every,
    Flow,
    Session,
    Sliding,
    StatefulProcessor,
    Watermarks,
    bounded,
    monotonic,
    sum_,
)
from onefold.flow.testing import FlowTest
from onefold.spark.flows.stages import PreparedTask
from onefold.spark.flows.translation import Translation


def windows_of(watermarks: Watermarks, window: Any, given: dict[str, Any], patch: pytest.MonkeyPatch) -> SparkTest:
    return SparkTest(window_cases.flow(watermarks, window, given), patch)


@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), window_cases.CASES)
def test_case_of_windows(
    monkeypatch: pytest.MonkeyPatch,
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
) -> None:
    test = windows_of(watermarks, window, given, monkeypatch)
    found = window_cases.numbered(window_cases.by_test(test, text, restores=False))
    assert {epoch: sorted(out) for epoch, out in found.items()} == {n: sorted(out) for n, out in expected.items()}


@pytest.mark.parametrize(("watermarks", "text", "expected"), timer_cases.CASES)
def test_case_of_timers(
    monkeypatch: pytest.MonkeyPatch, watermarks: Watermarks, text: str, expected: dict[str, list[str]]
) -> None:
    assert timer_cases.fired(SparkTest(timer_cases.flow(watermarks), monkeypatch), text) == expected


@pytest.mark.parametrize(("join", "text", "expected"), join_cases.CASES)
def test_case_of_joins(monkeypatch: pytest.MonkeyPatch, join: Any, text: str, expected: dict[str, list[str]]) -> None:
    assert join_cases.by_test(SparkTest(join_cases.flow(join), monkeypatch), text) == expected


class Chained(StatefulProcessor):
    """Each timer registers the next one, three times."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._left = handle.getValueState("left", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del key, rows, timerValues
        self._left.update((3,))
        self._handle.registerTimer(1_000)
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:  # noqa: N802, N803
        del key, timerValues
        (left,) = self._left.get()
        self._left.update((left - 1,))
        if left > 1:
            self._handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 1)
        yield (f"{expiredTimerInfo.getExpiryTimeInMs()}",)


def chained(patch: pytest.MonkeyPatch) -> SparkTest:
    made = Flow("chained", max_parallelism=3)
    rows = window_cases.source(made, window_cases.EVER)
    rows.key_by("key").process(Chained(), "at string", uid="chained", timers="event").sink(AnySink("fired"))
    return SparkTest(made, patch)


def test_timers_that_timers_register_at_the_end_fire_in_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    test = chained(monkeypatch)
    assert test.epoch({"rows/p": [("a", time_of(0), 1)]}) == {"fired": []}
    assert test.epoch(ended=["rows"])["fired"] == [{"at": "1000"}, {"at": "1001"}, {"at": "1002"}]
    assert not test.timers


def test_a_timer_that_is_registered_when_its_time_has_passed_fires_with_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = chained(monkeypatch)
    found = [test.epoch({"rows/p": [("a", time_of(5), 1)]})["fired"]]
    while test.timers:
        test.advance(1)
        found.append(test.epoch()["fired"])
    assert found == [[{"at": "1000"}], [{"at": "1001"}], [{"at": "1002"}]]


def silent(idle: str, patch: pytest.MonkeyPatch) -> SparkTest:
    return windows_of(monotonic("at", idle=idle), window_cases.TEN, {}, patch)


@pytest.mark.parametrize(("idle", "due_s"), [("20 seconds", 20), ("90 seconds", 90)])
def test_idle_may_change_between_starts(monkeypatch: pytest.MonkeyPatch, idle: str, due_s: int) -> None:
    """The batch with which a start tells its new one registers the timers anew, and leaves none of the old ones."""
    first = silent("60 seconds", monkeypatch)
    first.epoch({"rows/p": [("a", time_of(25), 1)], "rows/q": [("a", time_of(5), 1)]})
    assert {at_ms for _, at_ms in first.timers} == {60_000} and len(first.timers) == 16
    other = silent(idle, monkeypatch)
    other.spark.store, other._named = first.spark.store, first._named
    other.advance(2)
    assert other.epoch({"rows/p": [], "rows/q": []})["fired"] == []
    assert {at_ms for _, at_ms in other.timers} == {due_s * 1_000} and len(other.timers) == 16
    other.advance(due_s)
    assert [window_cases.told(row) for row in other.epoch()["fired"]] == ["a[0,10)=1"]
    assert not other.timers


@pytest.mark.parametrize(
    ("idle", "other", "expected"),
    [
        ("60 seconds", "90 seconds", [["a[0,10)=1", "a[20,30)=1"], []]),
        ("60 seconds", None, [["a[0,10)=1", "a[20,30)=1"], []]),
        ("90 seconds", "60 seconds", [[], ["a[0,10)=1", "a[20,30)=1"]]),
        (None, "60 seconds", [[], ["a[0,10)=1", "a[20,30)=1"]]),
    ],
)
def test_a_batch_that_runs_again_goes_by_the_idle_that_it_was_made_with(
    monkeypatch: pytest.MonkeyPatch, idle: str | None, other: str | None, expected: list[list[str]]
) -> None:
    """Spark keeps the state once the epoch is decided: after a start between the two it is that of the rows that were
    written."""
    first, again = (windows_of(monotonic("at", idle=each), window_cases.TEN, {}, monkeypatch) for each in (idle, other))
    first.epoch({"rows/p": [("a", time_of(25), 1)], "rows/q": [("a", time_of(5), 1)]})
    again.spark.store, again._named = copy.deepcopy(first.spark.store), dict(first._named)
    for test in (first, again):
        test.advance(75)
    found = [test.epoch({"rows/p": [("a", time_of(30), 1)]})["fired"] for test in (first, again)]
    assert found[0] == found[1]
    again.advance(1)
    found[1:] = [again.epoch({"rows/p": [("a", time_of(31), 1)]})["fired"]]
    assert [[window_cases.told(row) for row in of] for of in found] == expected


@pytest.mark.parametrize(("lateness", "other"), [("5 seconds", "40 seconds"), ("40 seconds", "5 seconds")])
@pytest.mark.parametrize("window", [window_cases.TEN, window_cases.GAP], ids=str)
def test_a_batch_that_runs_again_with_another_lateness_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, window: Any, lateness: str, other: str
) -> None:
    first, again = (
        windows_of(window_cases.EVER, window, {"lateness": each, "results": "retracting"}, monkeypatch)
        for each in (lateness, other)
    )
    found: list[list[str]] = []
    for epoch in epochs_of("a@1 b@8 | a@14 | a@2 b@9 b@11 | a@3 a@31 | a@4 b@12 c@12 a@60"):
        given_ = {f"rows/{partition}": rows for partition, rows in epoch.rows.items()}
        again.spark.store, again._named = copy.deepcopy(first.spark.store), dict(first._named)
        out, same = (sorted(str(row) for of in test.epoch(given_).values() for row in of) for test in (first, again))
        assert out == same
        found.append(out)
    assert any("'emission': 2, 'retracts': True" in row for of in found for row in of)
    assert any("'key': 'c', 'at'" in row for row in found[-1]) == (lateness == "5 seconds")


def test_an_epoch_that_runs_again_fires_and_drops_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    test = windows_of(window_cases.IDLE, window_cases.TEN, window_cases.LATE, monkeypatch)
    text = "p:a@1 p:b@7 q:a@14 T=0 | p:a@16 q:a@21 q:a@2 T=1 | q:b@33 q:a@3 p:a@9 T=30 | T=92 | q:a@41 T=93"
    for epoch in epochs_of(text):
        given = {f"rows/{partition}": rows for partition, rows in epoch.rows.items()}
        before, named = copy.deepcopy(test.spark.store), dict(test._named)
        test._now_ms = epoch.now_s * 1_000
        found = test.epoch(given)
        test.spark.store, test._named = before, named
        again = test.epoch(given)
        assert {sink: sorted(map(str, of)) for sink, of in again.items()} == {
            sink: sorted(map(str, of)) for sink, of in found.items()
        }


def test_the_line_of_the_log_says_where_the_watermark_is_what_it_waits_for_and_what_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = windows_of(window_cases.IDLE, window_cases.TEN, {}, monkeypatch)
    test.epoch({"rows/p": [("a", time_of(25), 1)], "rows/q": [("a", time_of(21), 1)]})
    test.advance(30)
    rows = [(key, time_of(second), 1) for key, second in (("a", 3), ("b", 4), ("c", 5), ("d", 40))]
    test.epoch({"rows/p": rows})
    translation = Translation(test.spark.plan, {})
    tasks = [PreparedTask((), test.spark.seen)]
    for epoch, in_all in ((2, 3), (2, 3), (3, 6)):  # the second is written again
        late, told = translation._tell(tasks, epoch, 30_000)
        assert (late, translation.told.clocks["sums"].late) == (3, in_all)
    assert told == (
        "watermark 1970-01-01 00:00:21.0 (9.0 s behind), waits for q (silent for 30 s, idle after 60 s)",
        "3 late rows (sums)",
    )


ROWS_OF_EPOCH = st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("abc"), st.integers(-20, 90)), max_size=6)
EPOCHS = st.lists(st.tuples(ROWS_OF_EPOCH, st.sampled_from([1, 20, 61])), min_size=1, max_size=6)


def cascade(watermarks: Watermarks, lateness: str) -> Flow:
    """Ten seconds into half a minute, of no key."""
    made = Flow("windows", max_parallelism=5)
    tens = window_cases.source(made, watermarks).key_by("key").window(window_cases.TEN, lateness=lateness, late="late")
    first = tens.aggregate(uid="tens", total=sum_("amount"))
    first.sink(AnySink("tens", replaces=Upsert(("key", "window_start"))))
    first.side("late").sink(AnySink("late"))
    halves = first.window(Sliding("30 seconds", "10 seconds")).aggregate(uid="halves", total=sum_("total"))
    halves.sink(AnySink("halves"))
    return made


BROKEN = bounded("at", "5 seconds", idle="60 seconds")
BACK = {"results": "retracting", "lateness": "15 seconds"}
FLOWS = [
    partial(cascade, BROKEN, "0 seconds"),
    partial(cascade, BROKEN, "15 seconds"),
    partial(window_cases.flow, BROKEN, window_cases.TWENTY, {"trigger": Every("5 seconds"), **BACK}),
    partial(window_cases.flow, BROKEN, Sliding("20 seconds", "10 seconds"), {"trigger": EachEpoch(), **BACK}),
    partial(window_cases.flow, BROKEN, Session("9 seconds"), {"trigger": EachEpoch(), **BACK}),
    partial(window_cases.flow, BROKEN, Session("9 seconds"), BACK),
]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EPOCHS, st.sampled_from(FLOWS), st.booleans(), st.randoms(use_true_random=False))
def test_random_epochs_give_the_rows_that_the_engine_gives(
    monkeypatch: pytest.MonkeyPatch, epochs: Any, made: Callable[[], Flow], ends: bool, chance: random.Random
) -> None:
    """And again when a batch runs again."""
    spark, engine = SparkTest(made(), monkeypatch, chance), FlowTest(made())
    try:
        for number, (rows, passed_s) in enumerate(epochs, start=1):
            given_: dict[str, list[Any]] = {}
            for partition, key, second in rows:
                given_.setdefault(f"rows/{partition}", []).append((key, time_of(second), 1))
            ended = ["rows"] if ends and number == len(epochs) else []
            for test in (spark, engine):
                test.advance(seconds=passed_s)
            expected, before = engine.epoch(given_, ended=ended), copy.deepcopy(spark.spark.store)
            for _ in range(2):
                spark.spark.store = copy.deepcopy(before)
                found = spark.epoch(given_, ended)
                for sink, of in expected.items():
                    assert sorted(map(str, found[sink])) == sorted(map(str, of)), (number, sink)
    finally:
        engine.close()
