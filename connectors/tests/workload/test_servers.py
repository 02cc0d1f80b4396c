from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from onefold.connectors.workload.servers import interrupted_once


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_does_not_stop_the_stopping(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped = []

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        stopped.append("server")

    def run() -> None:
        with ExitStack() as cleanup:
            cleanup.enter_context(interrupted_once())
            cleanup.callback(stop)
            os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert stopped == ["server"]
    assert capfd.readouterr().err.count("still ending") == 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
