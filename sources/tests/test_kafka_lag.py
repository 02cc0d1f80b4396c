"""How far a topic is behind, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onefold.core.positions import Positions
from onefold.sources import KafkaSource
from onefold.sources.kafka.offsets import OffsetSnapshot

THERE = OffsetSnapshot({("t", 0): 10, ("t", 1): 7, ("t", 2): 3})


@pytest.mark.parametrize(
    ("until", "behind"),
    [
        (None, {"t/0": 6, "t/1": 2, "t/2": 3}),
        ({"t/0": 8, "t/1": 2}, {"t/0": 4, "t/1": 0}),  # one that was moved beyond its end, and one that came later
    ],
    ids=["unbounded", "bounded"],
)
def test_a_topic_is_behind_by_what_is_left_up_to_its_end(
    until: dict[str, int] | None, behind: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KafkaSource("t", bootstrap_servers="localhost:1", format="json", schema="k string")
    monkeypatch.setattr(type(source), "broker", lambda _: SimpleNamespace(close=lambda: None))
    planner: Any = source.planner(None, None if until is None else Positions.of(until))
    monkeypatch.setattr(planner._planner, "ends", lambda _: THERE)
    assert planner.behind(Positions.of({"t/0": 4, "t/1": 5})) == behind
