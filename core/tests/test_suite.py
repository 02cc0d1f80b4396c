"""The suite's own machinery."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("one")
def test_a_group_of_tests_reaches_the_scheduler_that_is_to_keep_it_in_one_process(
    request: pytest.FixtureRequest,
) -> None:
    """pytest-xdist 3.8 appends it to the node's id in a way that pytest 9.2 does not see."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("this run has no groups: one process, or another --dist")
    assert request.node.nodeid.endswith("@one")
