"""State that lives for a while, in whole flows on the engine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import ttl_cases
from harness.errors import raises

from onefold.core import ConfigError
from onefold.flow import Ttl
from onefold.flow.testing import FlowTest
from onefold.flow.writing import check_same_again


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
@pytest.mark.parametrize(("ttl", "text", "epochs"), ttl_cases.CASES)
def test_sums_begin_anew(ttl: Ttl, text: str, epochs: str, operator: str, restores: bool) -> None:
    test: Any = FlowTest(ttl_cases.flow(operator, ttl))
    assert ttl_cases.sums(test, text, restores) == ttl_cases.expected(text, epochs)


def test_what_is_seen_until_it_is_cleaned_goes_into_no_sink_that_is_written_before_the_decision() -> None:
    for visible in ("never_expired", "until_cleaned"):
        flow = ttl_cases.flow("aggregate", Ttl("1 day", visible=visible))  # type: ignore[arg-type]
        graph = flow.graph()
        check_same_again(graph, ())
        if visible == "never_expired":
            check_same_again(graph, ("sums",))
            continue
        with raises(ConfigError, "ttl-visibility", "'sums'"):
            check_same_again(graph, ("sums",))


@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
def test_a_start_of_another_version_gives_state_a_time_to_live_changes_it_and_takes_it_away(operator: str) -> None:
    test: Any = FlowTest(ttl_cases.flow(operator, None))
    now_s, at = 0, ttl_cases.EPOCH

    def total(at_s: int, event_s: int) -> int:
        nonlocal now_s
        test.advance(seconds=at_s - now_s)
        now_s = at_s
        (row,) = test.epoch({"rows": [("a", at + timedelta(seconds=event_s), 1)]})["sums"]
        return int(row["amount"])

    def is_now(ttl: Ttl | None) -> None:
        test.change(ttl_cases.flow(operator, ttl))

    assert [total(0, 0), total(1, 0)] == [1, 2]
    is_now(Ttl("10 seconds"))
    assert [total(50, 0), total(59, 0), total(69, 0)] == [3, 4, 1]
    is_now(Ttl("10 seconds", clock="event"))
    assert [total(99, 5), total(199, 14), total(200, 30), total(201, 30)] == [2, 3, 4, 1]
    is_now(None)
    assert [total(500, 99), total(501, 99)] == [2, 3]
    test.close()
