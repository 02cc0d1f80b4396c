"""The last epoch becomes complete where none follows soon."""

from __future__ import annotations

import threading
import time

import pytest

from onefold.store.job.completer import Completer


def test_it_completes_once_no_epoch_has_ended_for_a_while_and_again_after_the_next() -> None:
    calls: list[float] = []
    called = threading.Event()

    def complete() -> bool:
        calls.append(time.monotonic())
        called.set()
        return True

    completer = Completer(complete, after_s=0.2)
    for _ in range(2):
        called.clear()
        for _ in range(3):
            completer.epoch_ended()
            ended_s = time.monotonic()
            time.sleep(0.05)
        assert called.wait(10)
        assert calls[-1] - ended_s >= 0.19
    completer.stop()
    assert len(calls) == 2


def test_it_tries_again_until_that_is_done() -> None:
    answers = iter([False, False, True])
    done = threading.Event()

    def complete() -> bool:
        answer = next(answers)
        if answer:
            done.set()
        return answer

    completer = Completer(complete, after_s=0.01)
    completer.epoch_ended()
    assert done.wait(10)
    completer.stop()
    assert next(answers, None) is None


@pytest.mark.parametrize("stopped_first", [True, False])
def test_once_stopped_it_completes_nothing(stopped_first: bool) -> None:
    calls: list[None] = []
    completer = Completer(lambda: calls.append(None) is None, after_s=0.05)
    if stopped_first:
        completer.stop()
    completer.epoch_ended()
    completer.stop()
    time.sleep(0.2)
    assert calls == []
