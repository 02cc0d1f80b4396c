"""State that lives for a while, in whole flows on the engine."""

from __future__ import annotations

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
