"""Flows on the engine, from Kafka into real sinks, undisturbed."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_rows_come_once(flows: Any, delivery: str, workers: int) -> None:
    flows.put(1_000)
    job = flows.job(delivery=delivery, workers=workers)
    flows.finish(job)
    flows.assert_exact(job)


@pytest.mark.parametrize("kind", ["numbered", "totals"])
@pytest.mark.parametrize("workers", [1, 2])
def test_state_is_of_all_workers_together_and_goes_on_at_the_next_start(flows: Any, kind: str, workers: int) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, workers=workers)
    flows.finish(job)
    flows.assert_exact(job)
