"""A flow on Spark whose driver is killed at named places: the next start is exact, state and all."""

from __future__ import annotations

from typing import Any

import pytest
from harness.flow_job import FlowProcess

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["numbered", "totals"])
@pytest.mark.parametrize("places", [("before:Decide#2", "after:Decide#2"), ("writers:prepared#1", "after:OpenEpoch#3")])
def test_a_driver_that_is_killed_leaves_every_row_once(flows: Any, kind: str, places: tuple[str, ...]) -> None:
    flows.put(800)
    job = flows.job(kind=kind, runtime="spark", at_most=200)
    for place in places:
        process: FlowProcess = flows.start(job, place)
        process.held()
        process.kill()
    flows.finish(job)
    flows.assert_exact(job)
