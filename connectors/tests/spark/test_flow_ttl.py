"""State that lives for a while, in whole flows with a model of Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ttl_cases
from harness.errors import raises
from spark_model import SparkTest

from onefold.core import CheckpointMismatch
from onefold.core.source import Split
from onefold.engine.dataflow.chains import plan
from onefold.flow import Ttl
from onefold.flow.time.clocks import SourceEnd
from onefold.spark.flows.refusals import check_kept


@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
@pytest.mark.parametrize(("ttl", "text", "epochs"), ttl_cases.CASES)
def test_sums_begin_anew(ttl: Ttl, text: str, epochs: str, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = SparkTest(ttl_cases.flow(operator, ttl), monkeypatch)
    assert ttl_cases.sums(test, text) == ttl_cases.expected(text, epochs)


@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
def test_a_timer_has_a_group_cleaned_until_nothing_is_left(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = SparkTest(ttl_cases.flow(operator, Ttl("10 seconds")), monkeypatch)
    test.epoch({"rows/p": [("a", ttl_cases.EPOCH, 1), ("b", ttl_cases.EPOCH, 1)]})
    assert [at_ms for _, at_ms in test.timers] == [2_500] * 2
    for _ in range(3):
        test.advance(2.5)
        test.epoch()
    assert [at_ms for _, at_ms in test.timers] == [10_000] * 2
    test.advance(2.5)
    test.epoch()
    entries = {
        name: of for (_, name, *_), of in test.spark.store.items() if name.endswith(("sum", "reduced", "aggregates"))
    }
    assert not test.timers and entries and not any(entries.values())


def test_a_time_to_live_that_is_taken_away_is_refused() -> None:
    pins: dict[str, str] = {}

    def pin(name: str, find: Callable[[], str]) -> str:
        if name not in pins:
            pins[name] = find()
        return pins[name]

    def begun(operator: str, ttl: Ttl | None) -> None:
        check_kept(pin, plan(ttl_cases.flow(operator, ttl).graph(), sinks_apart=True))

    for operator in ttl_cases.OPERATORS:
        pins.clear()
        begun(operator, None)
        begun(operator, Ttl("1 day"))
        begun(operator, Ttl("2 days"))
        with raises(CheckpointMismatch, "state-operators-changed", "'sums'"):
            begun(operator, None)


@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
def test_a_group_that_comes_with_a_savepoint_is_cleaned_without_rows(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = SparkTest(ttl_cases.flow(operator, Ttl("10 seconds")), monkeypatch)
    test.epoch({"rows/p": [("a", ttl_cases.EPOCH, 1), ("b", ttl_cases.EPOCH, 1)]})
    test.advance(1)
    test.spark.move(1_000)
    for _ in range(4):
        assert any(test.spark.store[place] for place in _entries(test))
        test.advance(2.5)
        test.epoch()
    assert not any(test.spark.store[place] for place in _entries(test)) and not test.timers


def _entries(test: SparkTest) -> list[Any]:
    found = [place for place in test.spark.store if str(place[1]).endswith(("sum", "reduced", "aggregates"))]
    assert found
    return found


@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
def test_a_key_group_without_a_turn_since_a_time_to_live_was_given_goes_into_no_savepoint(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = SparkTest(ttl_cases.flow(operator, None), monkeypatch)
    rows = [("a", ttl_cases.EPOCH, 1), ("b", ttl_cases.EPOCH, 1)]
    test.epoch({"rows/p": rows})
    test.spark.plan = plan(ttl_cases.flow(operator, Ttl("10 seconds")).graph(), sinks_apart=True)
    test.spark.epoch([[(0, Split("p", [rows[0]]))]], 1_000, {0: SourceEnd(("p",))})
    with raises(CheckpointMismatch, "state-ttl-changed", "'sums'"):
        test.spark.move(1_000)
    test.spark.epoch([[(0, Split("p", [rows[1]]))]], 2_000, {0: SourceEnd(("p",))})
    test.spark.move(2_000)
    (row,) = test.spark.epoch([[(0, Split("p", [rows[1]]))]], 3_000, {0: SourceEnd(("p",))})["sums"]
    assert row["amount"] == 3
