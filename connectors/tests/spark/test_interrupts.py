"""Signals where a script waits for its query."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from onefold.spark.query_gate import interrupted_by


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def of_spark(_number: int, _frame: object) -> None:
    raise AssertionError("it asks the JVM in the middle of another call")


of_spark.__module__ = "pyspark.core.context"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_query_in_another_thread_and_the_second_one_is_the_scripts_again(
    number: signal.Signals,
) -> None:
    ended: list[tuple[signal.Signals, threading.Thread]] = []
    over = threading.Event()

    def end(by: signal.Signals) -> None:
        ended.append((by, threading.current_thread()))
        over.set()

    signal.signal(signal.SIGINT, of_spark)
    with interrupted_by(end):
        signal.raise_signal(number)
        assert over.wait(10)
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == [of_spark, signal.SIG_DFL]
    assert [by for by, _ in ended] == [number] and ended[0][1] is not threading.main_thread()
    assert signal.getsignal(signal.SIGINT) is of_spark


def test_a_scripts_own_handler_stays() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    with interrupted_by(lambda _: seen.clear()):
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_in_another_thread_no_handler_is_set() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def wait() -> None:
        with interrupted_by(lambda _: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(10)
    assert seen == [before]
