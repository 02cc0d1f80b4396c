"""Timers of event time, by a processor that adds up ten seconds a key: firings and late rows of each epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from timed_rows import EPOCH, ROWS
from timer_cases import CASES, EVER, IDLE, fired, flow

from onefold.core import CheckpointMismatch, ConfigError
from onefold.flow import Flow, StatefulProcessor, Watermarks, bounded
from onefold.flow.graph.event_time import clocks_of
from onefold.flow.testing import FlowTest


@pytest.mark.parametrize("restores", [False, True], ids=["", "restarts between all epochs"])
@pytest.mark.parametrize(
    ("watermarks", "text", "expected"),
    CASES,
)
def test_case(watermarks: Watermarks, text: str, expected: dict[str, list[str]], restores: bool) -> None:
    assert fired(FlowTest(flow(watermarks)), text, restores) == expected


def test_case_6_a_partition_that_was_named_and_has_no_record_holds_the_watermark() -> None:
    test = FlowTest(flow(EVER))
    at = EPOCH + dt.timedelta(seconds=25)
    test.epoch({"rows/p": [("a", at, 1)], "rows/q": []})
    assert test.watermark("ten") is None
    assert test.epoch({"rows/p": [("a", at + dt.timedelta(seconds=6), 1)]}) == {"fired": [], "late": []}
    test.close()


def test_the_test_kit_says_where_the_watermark_is() -> None:
    test = FlowTest(flow(bounded("at", "5 seconds")))
    test.epoch({"rows": [("a", EPOCH + dt.timedelta(seconds=25), 1)]})
    assert test.watermark("ten") == EPOCH + dt.timedelta(seconds=20)
    test.restore()
    assert test.watermark("ten") == EPOCH + dt.timedelta(seconds=20)
    test.epoch(ended=["rows"])
    assert test.watermark("ten") == dt.datetime.max.replace(tzinfo=dt.UTC)
    test.close()


def test_a_watermark_before_the_year_1_is_the_first_time_that_python_knows() -> None:
    test = FlowTest(flow(bounded("at", "999999 days")))
    test.epoch({"rows": [("a", EPOCH, 1)]})
    assert test.watermark("ten") == dt.datetime.min.replace(tzinfo=dt.UTC)
    test.close()


class Chained(StatefulProcessor):
    """Each timer registers the next one, three times."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._left = handle.getValueState("left", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del key, rows, timerValues
        self._left.update((3,))
        self._handle.registerTimer(1_000)
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del key, timerValues
        (left,) = self._left.get()
        self._left.update((left - 1,))
        if left > 1:
            self._handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 1)
        yield (f"{expiredTimerInfo.getExpiryTimeInMs()}",)


def test_a_timer_that_is_registered_when_its_time_has_passed_fires_with_the_next_epoch() -> None:
    made = Flow("chained")
    rows = made.source(AnySource("rows", ROWS, is_resolved=True), uid="rows", watermarks=EVER)  # type: ignore[arg-type]
    rows.key_by("key").process(Chained(), "at string", uid="chained", timers="event").sink(AnySink("fired"))
    test = FlowTest(made)
    (subtask,) = (each for each in test._flow._subtasks if each.chain.uid)
    found = [test.epoch({"rows": [("a", EPOCH, 1)]}, ended=["rows"])["fired"]]
    while subtask.timer_ms == 0:
        found.append(test.epoch(ended=["rows"])["fired"])
    assert found == [[{"at": "1000"}], [{"at": "1001"}], [{"at": "1002"}]]
    test.close()


def test_what_is_refused() -> None:
    with raises(ConfigError, "watermarks-missing"):
        flow(None)
    with raises(ConfigError, "option-value"):
        flow(EVER, timers="both")


def test_a_union_of_streams_with_and_without_watermarks_is_refused() -> None:
    made = Flow("windows")
    left, right = (
        made.source(AnySource(name, ROWS, is_resolved=True), uid=name, watermarks=of)  # type: ignore[arg-type]
        for name, of in (("left", EVER), ("right", None))
    )
    with raises(ConfigError, "watermarks-missing"):
        left.union(right).key_by("key").process(Chained(), "at string", uid="chained", timers="event")


def test_a_source_that_never_has_a_record_is_waited_for_until_it_is_silent() -> None:
    made = Flow("windows")
    left, right = (
        made.source(AnySource(name, ROWS, is_resolved=True), uid=name, watermarks=IDLE)  # type: ignore[arg-type]
        for name in ("left", "right")
    )
    left.union(right).key_by("key").process(Chained(), "at string", uid="chained", timers="event").sink(
        AnySink("fired")
    )
    test = FlowTest(made)
    at = EPOCH + dt.timedelta(seconds=5)
    assert test.epoch({"left": [("a", at, 1)]})["fired"] == [] and test.watermark("chained") is None
    test.restore()
    test.advance(seconds=59)
    test.epoch({"left": [("a", at, 1)]})
    assert test.watermark("chained") is None
    test.advance(seconds=1)
    assert test.epoch({"left": [("a", at, 1)]})["fired"] == [{"at": "1000"}] and test.watermark("chained") == at
    test.close()


def test_streams_that_part_and_unite_thirty_times_have_the_clocks_of_their_source() -> None:
    made = Flow("windows")
    rows = made.source(AnySource("rows", ROWS, is_resolved=True), uid="rows", watermarks=EVER)  # type: ignore[arg-type]
    for _ in range(30):
        rows = rows.filter(pc.field("amount") > 0).union(rows.filter(pc.field("amount") <= 0))
    rows.key_by("key").process(Chained(), "at string", uid="chained", timers="event").sink(AnySink("fired"))
    graph = made.graph()
    (node,) = (node for node in graph.nodes if node.keeps_event_time)
    assert clocks_of(graph.nodes, node.inputs) == {"rows": EVER}


def test_timers_of_processing_time_are_not_taken_for_those_of_event_time() -> None:
    test = FlowTest(flow(EVER, timers="processing"))
    test.epoch({"rows": [("a", dt.datetime(2030, 1, 1, tzinfo=dt.UTC), 1)]})
    other = type(test._flow)(flow(EVER).graph(), test._folder.name)
    other._handles = test._flow._handles
    with raises(CheckpointMismatch, "state-operator-changed"):
        other.restore()
    test.close()
