"""Windows whose rows are kept one by one equal the plain models of those that are kept as states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from window_differential import equal
from windows import test_differential, test_early, test_sessions

from onefold.flow import Flow
from onefold.flow.graph.operators import Elements, Windowing


@dataclass(frozen=True)
class ByElements:
    """A shape whose flow has its windows by elements."""

    of: Any

    def flow(self) -> tuple[Flow, Any]:
        made, watermarks = self.of.flow()
        for number, node in enumerate(made._nodes.made):
            if isinstance(node.operator, Windowing):
                operator = replace(node.operator, elements=Elements(late="late"))
                made._nodes.made[number] = replace(node, operator=operator)
        return made, watermarks

    def model(self) -> Any:
        return self.of.model()


GIVEN: dict[str, Any] = {
    "windows": (test_differential.SHAPES, test_differential.COMMON),
    "early": (test_early.SHAPES, test_early.COMMON),
    "sessions": (test_sessions.SHAPES, test_sessions.COMMON),
}


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("what", GIVEN)
def test_elements_equal_the_model(what: str, backend: str) -> None:
    shapes, common = GIVEN[what]

    @settings(max_examples=8 if backend == "memory" else 2, deadline=None)
    @given(shape=shapes, **common)
    def check(shape: Any, **given_: Any) -> None:
        equal(ByElements(shape), backend, **given_)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb", "spark"])
@pytest.mark.parametrize("what", GIVEN)
def test_many_elements_equal_the_model(what: str, backend: str) -> None:
    shapes, common = GIVEN[what]

    @settings(max_examples=300, deadline=None)
    @given(shape=shapes, **common)
    def check(shape: Any, **given_: Any) -> None:
        equal(ByElements(shape), backend, **given_)

    check()
