"""What keyed Kafka wrote repeatedly, read by a flow that drops repeats: exact on both runtimes, killed and resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness.kafka.reading import Reader

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize(
    ("runtime", "kind", "state"),
    [
        ("engine", "once", "memory"),
        ("engine", "once", "rocksdb"),
        ("engine", "within", "memory"),
        ("engine", "within", "rocksdb"),
        ("spark", "once", "memory"),
        ("spark", "within", "memory"),
    ],
)
def test_what_a_keyed_sink_wrote_repeatedly_arrives_once(
    flows: Any, kafka_topic: Callable[..., str], runtime: str, kind: str, state: str
) -> None:
    """Kafka to Kafka to Postgres: one driver dies once its writers are done, and another one in the reader."""
    between = kafka_topic(partitions=3)
    flows.put(600)
    write = flows.job(delivery="keyed", out=between, workers=2)
    _cut(flows, write, "before:Decide#2")
    flows.finish(write)
    written = len([*Reader(flows.servers, between, 3, "read_uncommitted").read()])
    assert written > 600

    checkpoint = str(flows.directory / "reading")
    read = replace(write, topic=between, kind=kind, delivery="two_phase", checkpoint=checkpoint, name="reading")
    read = replace(read, runtime=runtime, state=state, at_most=500)
    _cut(flows, read, "after:Decide")
    flows.finish(replace(read, workers=3, at_most=250))
    flows.assert_exact(read)


def _cut(flows: Any, job: Any, place: str) -> None:
    process = flows.start(job, place)
    process.held()
    process.kill()
