"""How many offsets a stream with a rate plans, over time."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from onefold.sources.kafka.planning.limits import BURST_S, Rate


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def plan(rate: Rate, clock: Clock, lag: int, least: int = 0) -> int:
    """Wait as long as the rate says, and take a batch; `least` is what it has at least, as the planner's may."""
    clock.now_s += rate.wait_s(lag)
    planned = min(lag, max(least, rate.offsets_max()))
    rate.take(planned, lag - planned)
    return planned


def test_a_first_batch_has_a_seconds_worth_and_later_ones_what_the_time_allows() -> None:
    clock = Clock()
    rate = Rate(100, clock)
    assert plan(rate, clock, 10_000) == 100
    clock.now_s += 5
    assert plan(rate, clock, 10_000) == 500
    assert plan(rate, clock, 10_000) == 100 and clock.now_s == 106, "it has waited for a second's worth"
    clock.now_s += 600
    assert plan(rate, clock, 100_000) == 100 * BURST_S, "a batch that took ten minutes is not caught up at once"


def test_a_stream_with_little_to_read_does_not_wait_and_saves_nothing() -> None:
    clock = Clock()
    rate = Rate(100, clock)
    for _ in range(20):
        assert rate.wait_s(3) == 0.0
        assert plan(rate, clock, 3) == 3
        clock.now_s += 1
    assert plan(rate, clock, 10_000) <= 201, "the second since then, and one that was kept"


def test_a_batch_that_had_to_be_larger_is_waited_for() -> None:
    clock = Clock()
    rate = Rate(1, clock)
    assert plan(rate, clock, 1000, least=30) == 30  # each of thirty partitions gets one
    assert rate.wait_s(1000) == 30.0


def test_it_travels_with_the_planner() -> None:
    assert pickle.loads(pickle.dumps(Rate(7))).offsets_max() == 7


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 120), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_over_any_time_no_more_is_planned_than_the_rate_and_one_burst_allow(
    per_s: int, batches: list[tuple[float, int]]
) -> None:
    clock = Clock()
    rate = Rate(per_s, clock)
    planned: list[tuple[float, int]] = []
    for took_s, lag in batches:
        taken = plan(rate, clock, lag) if lag else 0
        planned.append((clock.now_s, taken))
        clock.now_s += took_s
    for first, (from_s, _) in enumerate(planned):
        for last in range(first, len(planned)):
            total = sum(taken for _, taken in planned[first : last + 1])
            assert total <= per_s * (planned[last][0] - from_s + BURST_S) + 1e-6 * per_s + 1
