"""Windows from Kafka into Postgres, killed at named places and started again with others: what a plain model says."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
from harness.late_windows import assert_exact

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize(
    ("state", "place"),
    [("memory", "before:Decide#3"), ("rocksdb", "after:Decide#3"), ("memory", "before:Commit#3")],
)
def test_case_81_windows_are_exact_after_a_driver_is_killed_and_others_go_on(
    flows: Any, state: str, place: str
) -> None:
    flows.put(1_500)
    job = flows.job(kind="late", state=state, workers=2)
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(replace(job, workers=3, at_most=220))
    assert_exact(flows, job)


def test_windows_are_exact_after_a_worker_is_killed(flows: Any) -> None:
    flows.put(1_500)
    job = flows.job(kind="late", workers=2)
    process = flows.start(job, "before:StoreState#3")
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "late rows (elements, parts, whole)" in process.log.read_text()
    assert_exact(flows, job)
