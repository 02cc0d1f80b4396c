"""Flows with mechanism="microbatch": stage after stage, exact whatever is killed in between."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize(
    "place", ["writers:written#2", "before:StoreState#2", "after:StoreState#3", "writers:prepared#2"]
)
@pytest.mark.parametrize(("kind", "state"), [("numbered", "memory"), ("totals", "rocksdb")])
def test_a_worker_that_is_killed_between_two_stages_leaves_every_row_once(
    flows: Any, kind: str, state: str, place: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, mechanism="microbatch", workers=2, state=state)
    process = flows.start(job, place)
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "[worker-lost]" in process.log.read_text()
    flows.assert_exact(job)


@pytest.mark.parametrize("place", ["engine:begun#2", "before:Decide#2", "after:Decide", "before:WriteLedger#2"])
@pytest.mark.parametrize(
    ("kind", "delivery"), [("numbered", "two_phase"), ("windows", "two_phase"), ("totals", "staged")]
)
def test_a_driver_that_is_killed_goes_on_from_its_last_epoch(flows: Any, kind: str, delivery: str, place: str) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, delivery=delivery, mechanism="microbatch", workers=2)
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(replace(job, workers=3))
    flows.assert_exact(job)
