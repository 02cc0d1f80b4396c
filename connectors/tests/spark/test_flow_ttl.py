"""State that lives for a while, in whole flows with a model of Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ttl_cases
from harness.errors import raises
from spark_model import SparkTest

from onefold.core import CheckpointMismatch
from onefold.engine.dataflow.chains import plan
from onefold.flow import Ttl
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
