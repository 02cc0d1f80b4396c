"""When a pipeline that has failed is started again: as its strategy says, within its bounds."""

from __future__ import annotations

import pytest
from harness.errors import raises

from onefold.core import ConfigError
from onefold.core.restart import Restart, Restarts


def delays(policy: Restart, *runs: tuple[float, float]) -> list[float | None]:
    restarts = Restarts(policy)
    return [restarts.delay_s(failed_s - began_s, failed_s) for began_s, failed_s in runs]


AT_ONCE = [(float(at), at + 0.5) for at in range(6)]


def test_each_failure_in_a_row_doubles_the_wait_up_to_the_longest() -> None:
    assert delays(Restart(delay_s=2, delay_max_s=20), *AT_ONCE) == [2, 4, 8, 16, 20, 20]
    assert delays(Restart(), *[(0.0, 0.1)] * 2000)[-1] == 60, "also after very many"


def test_a_query_that_ran_well_begins_the_row_anew() -> None:
    found = delays(Restart(healthy_s=60), (0, 1), (2, 3), (4, 64), (65, 66))
    assert found == [1, 2, 1, 2]


def test_what_has_completed_begins_the_row_anew() -> None:
    restarts = Restarts(Restart(strategy="fixed_delay", attempts=1))
    assert restarts.delay_s(0, 1) == 1
    restarts.completed()
    assert [restarts.delay_s(0, 2), restarts.delay_s(0, 3)] == [1, None]


def test_other_strategies_and_bounds() -> None:
    assert delays(Restart(strategy="fixed_delay", delay_s=5), *AT_ONCE) == [5] * 6
    assert delays(Restart(strategy="none"), (0, 1000)) == [None]
    assert delays(Restart(attempts=2, delay_s=1), *AT_ONCE[:4]) == [1, 2, None, None]
    healthy = Restart(strategy="fixed_delay", failures_max=2, interval_s=100, healthy_s=1)
    assert delays(healthy, (0, 10), (11, 50), (51, 90), (91, 120)) == [1, 1, None, None]
    assert delays(healthy, (0, 10), (11, 80), (81, 111), (112, 181)) == [1, 1, 1, 1], (
        "those that are long ago don't count"
    )


@pytest.mark.parametrize(
    "wrong", [{"delay_s": 0}, {"healthy_s": -1}, {"attempts": 0}, {"failures_max": 0}, {"interval_s": 0}]
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with raises(ConfigError, "option-value"):
        Restart(**wrong)
