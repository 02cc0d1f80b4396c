"""`max_offsets_per_second` on a real broker and a real Spark, of flows and of queries of one's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.support import AVAILABLE_NOW, Rig, wait_until
from pyspark.sql.streaming.query import StreamingQuery

from onefold.spark import EpochWriter

pytestmark = [pytest.mark.servers, pytest.mark.slow]
PER_S = 500
Started = tuple[EpochWriter, StreamingQuery]
Start = Callable[[dict[str, Any]], Started]


@pytest.fixture(params=["flow", "own query"])
def start(rig: Rig, request: pytest.FixtureRequest) -> Start:
    source = rig.source(at_most=None, max_offsets_per_second=PER_S)

    def started(trigger: dict[str, Any]) -> Started:
        if request.param == "flow":
            pipeline = rig.pipeline(source=source)
            return pipeline, pipeline.start(rig.spark, rig.checkpoint(), trigger)
        writer = rig.writer()
        query = rig.stream(source).writeStream.foreachBatch(writer).trigger(**trigger)
        return writer, query.option("checkpointLocation", rig.checkpoint()).start()

    return started


def taken(rig: Rig) -> int:
    return sum(outcome.record.rows for outcome in list(rig.outcomes))


@pytest.mark.parametrize("every", ["0 seconds", "3 seconds"])
def test_a_backlog_is_read_no_faster_than_the_rate_and_not_much_slower(rig: Rig, start: Start, every: str) -> None:
    rig.put(30_000)
    began_s = time.monotonic()
    pipeline, query = start({"processingTime": every})
    wait_until(lambda: taken(rig) > 0, "the first epoch")
    first_s, before = time.monotonic(), taken(rig)
    seen: list[tuple[float, int]] = []
    while time.monotonic() < first_s + 15:
        time.sleep(0.1)
        seen.append((time.monotonic(), taken(rig)))
    assert pipeline.drain(query, 60)
    assert all(rows <= PER_S * (at_s - began_s + 1) for at_s, rows in seen), "the allowance begins with a second's"
    at_s, rows = seen[-1]
    assert rows - before > PER_S * (at_s - first_s) / 2
    pipeline.close()


def test_what_is_there_now_is_read_to_its_end_at_the_rate(rig: Rig, start: Start) -> None:
    rig.put(4 * PER_S)
    began_s = time.monotonic()
    pipeline, query = start(AVAILABLE_NOW)
    rig.finish(pipeline, query)
    assert time.monotonic() - began_s > 3
    pipeline.close()
    rig.assert_exact()
