"""A flow on Spark whose driver is killed at named places: the next start is exact, state and all."""

from __future__ import annotations

from typing import Any

import pytest
from harness.flow_job import FlowProcess

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("numbered", "before:Decide#2"),
        ("totals", "after:Decide#2"),
        ("numbered", "before:WriteLedger#2"),
        ("windows", "after:Decide#2"),
        ("spark totals", "before:Decide#2"),
        ("spark totals", "after:Decide#2"),
    ],
)
def test_a_driver_that_is_killed_leaves_every_row_once_and_its_state(flows: Any, kind: str, place: str) -> None:
    flows.put(900)
    job = flows.job(kind=kind, runtime="spark", at_most=300)
    process: FlowProcess = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(job)
    flows.assert_exact(job)
