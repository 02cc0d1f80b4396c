"""The one place that sleeps and retries."""

from __future__ import annotations

import time

import pytest
from harness.errors import raises

from onefold.core import ConfigError, InDoubt, Retriable, WorkLost
from onefold.core.waiting import Wait, retry


def test_asking_again_ends_after_a_while_and_never_happens_for_what_cannot_be_cured() -> None:
    asked: list[float] = []

    def ask() -> str:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise Retriable("database-unavailable", "busy")
        return "answer"

    assert retry(ask, 10) == "answer"
    asked.clear()
    with raises(Retriable, "database-unavailable"):
        retry(lambda: ask() and None, 0.01)
    asked.clear()

    def refuse() -> None:
        asked.append(0)
        raise ConfigError("option-value", "no")

    with pytest.raises(ConfigError):
        retry(refuse, 10)
    assert len(asked) == 1


def test_what_is_never_asked_again_may_be_a_special_case_of_what_is() -> None:
    asked: list[Exception] = [
        WorkLost("prepared-work-gone", "gone"),
        InDoubt("commit-unanswered", "unknown"),
        Retriable("database-unavailable", "busy"),
    ]

    def ask() -> None:
        raise asked.pop()

    with raises(WorkLost, "prepared-work-gone"):
        retry(ask, 10, on=(Retriable, InDoubt), never=(WorkLost,))
    assert not asked


def test_a_wait_lasts_as_long_as_it_may_and_no_longer() -> None:
    began_s, wait = time.monotonic(), Wait(0.2, pause_s=0.01, pause_max_s=0.02)
    while wait.again():
        pass
    assert 0.2 <= time.monotonic() - began_s < 2
    assert wait.pauses > 5 and wait.is_over and not wait.again()


def test_however_late_the_first_answer_comes_there_is_a_second_look() -> None:
    wait = Wait(0)
    assert [wait.again(), wait.again()] == [True, False]
