"""How long the driver asks again."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import NoReturn

import pytest
from harness.errors import raises

from onefold.core import OnefoldError, OutOfResources, Retriable, waiting
from onefold.core.protocol import coordinator
from onefold.core.protocol import patience as patience_module
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import ListLeftovers, Pause, Protocol, ReadStore, retry
from onefold.core.protocol.patience import Patience

START_S = 1000.0
DOWN = Retriable("database-unavailable", "down")


class Clock:
    """Time passes where somebody sleeps, or a server is asked that does not answer: each question takes `takes_s`."""

    def __init__(self, takes_s: float) -> None:
        self.now_s, self.takes_s, self.asked_at_s = START_S, takes_s, list[float]()

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s

    def ask(self, *_: object) -> NoReturn:
        self.asked_at_s.append(self.now_s - START_S)
        self.now_s += self.takes_s
        raise DOWN


@pytest.fixture(params=[0.0, 2.0, 10.0, 40.0], ids="{:g} s a try".format)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(request.param)
    clocked = SimpleNamespace(monotonic=lambda: clock.now_s, sleep=clock.sleep, time_ns=lambda: 0)
    for module in (waiting, patience_module, coordinator):
        monkeypatch.setattr(module, "time", clocked)
    return clock


def assert_over(clock: Clock, patience_s: float) -> None:
    """The last try began within the patience, as late as it could, and after that nothing was waited for."""
    last_s = clock.asked_at_s[-1]
    assert patience_s - clock.takes_s - 1e-6 <= last_s <= patience_s + 1e-6
    assert clock.now_s - START_S == pytest.approx(last_s + clock.takes_s)


def test_a_server_that_is_away_is_asked_for_the_patience_and_no_try_begins_later(clock: Clock) -> None:
    with raises(Retriable, "database-unavailable"):
        Patience(15).retry(clock.ask, "asking")
    assert_over(clock, 15)


def test_so_is_one_that_goes_away_in_the_middle_of_an_epoch(clock: Clock) -> None:
    driver = Coordinator("p", SimpleNamespace(facts=clock.ask), {}, Patience(15))  # type: ignore[arg-type]
    with raises(Retriable, "database-unavailable"):
        driver.run(retry(ReadStore()))
    assert_over(clock, 15)


def test_another_error_than_the_one_that_is_waited_for_is_raised_at_once(clock: Clock) -> None:
    with raises(Retriable, "database-unavailable"):
        Patience(15).retry(clock.ask, "asking", OutOfResources)
    assert clock.asked_at_s == [0.0]


def test_a_wait_within_a_wait_gives_it_no_new_patience() -> None:
    patience = Patience(0.3, pause_max_s=0.05)
    full = OutOfResources("database-resources-exhausted", "full")

    def wait() -> None:
        for attempt in range(1, 100):
            patience(Pause(attempt, ListLeftovers("t", 1), full), time.monotonic())
            patience(Pause(1, ReadStore(), DOWN), time.monotonic())

    with raises(OutOfResources, "database-resources-exhausted"):
        wait()


def test_the_next_wait_for_the_same_begins_anew() -> None:
    patience = Patience(0.1, pause_max_s=0.01)
    for _ in range(3):
        time.sleep(0.1)
        patience(Pause(1, ReadStore(), DOWN), time.monotonic())
    time.sleep(0.1)
    with pytest.raises(Retriable):
        patience(Pause(2, ReadStore(), DOWN), time.monotonic())


def test_the_time_in_which_a_failed_try_progressed_is_no_wait() -> None:
    patience = Patience(0.1, pause_max_s=0.01)
    patience(Pause(1, ReadStore(), DOWN), time.monotonic())
    time.sleep(0.1)
    patience.progressed(0.1)
    patience(Pause(2, ReadStore(), DOWN), time.monotonic())


class Away:
    """A server that answers every third question. `told` is what its driver said of the wait when it asked."""

    def __init__(self) -> None:
        self.told: list[OnefoldError | None] = []
        self.driver: Patience | Coordinator | None = None

    def ask(self, *_: object) -> None:
        assert self.driver is not None
        self.told.append(self.driver.waiting_for)
        if len(self.told) % 3:
            raise DOWN


def test_what_is_waited_for_is_told_until_it_answers() -> None:
    away = Away()
    away.driver = patience = Patience(10, pause_max_s=0.01)
    patience.retry(away.ask, "asking")
    assert (away.told, patience.waiting_for) == ([None, DOWN, DOWN], None)


def test_of_an_epoch_too_and_only_for_the_step_that_waits() -> None:
    def steps() -> Protocol[None]:
        for _ in range(2):
            yield from retry(ReadStore())

    away = Away()
    away.driver = driver = Coordinator("p", SimpleNamespace(facts=away.ask), {}, Patience(10, 0.01))  # type: ignore[arg-type]
    driver.run(steps())
    assert (away.told, driver.waiting_for) == ([None, DOWN, DOWN] * 2, None)


def test_nothing_is_waited_for_any_more_once_patience_is_over(clock: Clock) -> None:
    patience = Patience(15)
    driver = Coordinator("p", SimpleNamespace(facts=clock.ask), {}, patience)  # type: ignore[arg-type]
    for ask in (lambda: patience.retry(clock.ask, "asking"), lambda: driver.run(retry(ReadStore()))):
        with pytest.raises(Retriable):
            ask()
    assert (patience.waiting_for, driver.waiting_for) == (None, None)
