from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from onefold.trials.workload.run_setup import interrupted_once

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def interrupt(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def run(doing: Callable[[], None]) -> list[str]:
    """A run that does this and ends; what it has stopped, though it was interrupted again meanwhile."""
    stopped: list[str] = []

    def stop() -> None:
        interrupt(*INTERRUPTS)
        stopped.append("server")

    with interrupted_once() as cleanup:
        cleanup.callback(stopped.append, "all")
        cleanup.callback(stop)
        doing()
    return stopped


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_second_interrupt_does_not_stop_the_stopping(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped: list[str] = []

    def doing() -> None:
        with interrupted_once() as cleanup:
            cleanup.callback(stopped.append, "server")
            cleanup.callback(interrupt, *INTERRUPTS)
            interrupt(number)

    before = [signal.getsignal(number) for number in INTERRUPTS]
    with pytest.raises(KeyboardInterrupt):
        doing()
    assert stopped == ["server"]
    assert capfd.readouterr().err.count("still ending") == 2
    assert [signal.getsignal(number) for number in INTERRUPTS] == before


def test_nor_does_the_first_one_of_a_run_that_ends_by_itself() -> None:
    assert run(lambda: None) == ["server", "all"]


def test_nor_does_one_where_nobody_reads_what_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that is gone, a pipe whose reader is: writing raises there, within the handler."""
    reader, writer = os.pipe()
    os.close(reader)
    write = os.write
    monkeypatch.setattr(os, "write", lambda _, text: write(writer, text))
    try:
        assert run(lambda: None) == ["server", "all"]
    finally:
        os.close(writer)
