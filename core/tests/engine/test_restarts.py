"""Restart strategies."""

from __future__ import annotations

from onefold.engine import ExponentialDelay, FailureRate, FixedDelay
from onefold.engine.driver.restarts import Tracker


def test_a_fixed_delay_ends_after_so_many_failures_in_a_row() -> None:
    tracker = Tracker(FixedDelay(attempts=2, delay_s_each=0.5))
    assert [tracker.failed(), tracker.failed(), tracker.failed()] == [0.5, 0.5, None]


def test_an_epoch_that_completes_begins_a_new_row() -> None:
    tracker = Tracker(FixedDelay(attempts=1, delay_s_each=0.5))
    assert tracker.failed() == 0.5
    tracker.completed()
    assert [tracker.failed(), tracker.failed()] == [0.5, None]


def test_an_exponential_delay_doubles_up_to_its_bound() -> None:
    tracker = Tracker(ExponentialDelay(first_s=1.0, max_s=5.0))
    assert [tracker.failed() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]


def test_a_failure_rate_counts_those_of_a_while() -> None:
    rate = FailureRate(failures_max=2, within_s=10.0, delay_s_each=1.0)
    assert rate.delay_s([0.0, 1.0], 2) == 1.0
    assert rate.delay_s([0.0, 1.0, 2.0], 3) is None
    assert rate.delay_s([0.0, 1.0, 20.0], 3) == 1.0
