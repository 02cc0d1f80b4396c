"""Runs pipelines until they end or the daemon is told to: SIGTERM and SIGINT end each after a complete epoch."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from onefold.core import Fenced, Retriable
from onefold.daemon.control import Controls
from onefold.daemon.pipeline_run import Run, RunState

_LOOK_S = 0.2
_TELL_S = 1.0

log = logging.getLogger("onefold")


class StopSignals:
    """The signals that asked the process to stop, and `kill`, which ends the processes that it has started. Without a
    lock: a signal handler that waits for one may wait for the thread that it has interrupted."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.by: list[signal.Signals] = []
        self.kill = kill

    def end_at_once(self, because: str) -> None:
        """In the main thread."""
        try:
            # What is logged takes for ever where nobody reads it.
            signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(Retriable.exit_code))
            signal.setitimer(signal.ITIMER_REAL, _TELL_S)
            self.kill()
            log.error("%s: the process ends now, and the next start resolves what is unfinished", because)
            sys.stderr.flush()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os._exit(Retriable.exit_code)


@contextmanager
def stop_signals(kill: Callable[[], None]) -> Iterator[StopSignals]:
    """Notes SIGTERM and SIGINT, instead of ending the process. With the second one it ends at once, with 75, after a
    call of `kill`. Enter it in the main thread."""
    asked = StopSignals(kill)

    def stop(number: int, _frame: FrameType | None) -> None:
        if asked.by:
            asked.end_at_once("a second signal came")
        asked.by.append(signal.Signals(number))

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(controls: Controls, asked: StopSignals) -> int:
    """Start all, and wait for their ends; one that its operator has stopped keeps the daemon. Returns the process's
    exit code: that of Fenced if any was taken over, else that of the first that failed, else 0.

    Where a pipeline is not at rest `stop_within_s` after the process was asked to stop, it ends at once, with 75: the
    next start resolves what it has begun.
    """
    if asked.by:
        return 0
    for control in controls:
        control.begin()
    is_ready = False
    while not controls.end_if_over() and not asked.by:
        time.sleep(_LOOK_S)
        for control in controls:
            control.look()
        if not is_ready and all(control.state not in (RunState.STARTING, RunState.WAITING) for control in controls):
            is_ready = True
            _notify("READY=1")
    runs = controls.close()
    if asked.by:
        log.info("%s: each pipeline ends after its epoch", asked.by[0].name)
        _notify("STOPPING=1")
        _stop(runs, asked)
    for run in runs:
        run.join()
    codes = [run.error.exit_code for run in runs if run.error is not None]
    return Fenced.exit_code if Fenced.exit_code in codes else next(iter(codes), 0)


def _stop(runs: list[Run], asked: StopSignals) -> None:
    began_s = time.monotonic()
    for run in runs:
        run.stop(0.0)
    late = [run.name for run in runs if not run.join(max(0.0, began_s + run.pipeline.stop_within_s - time.monotonic()))]
    if late:
        took_s = time.monotonic() - began_s
        asked.end_at_once(f"not at rest after {took_s:.0f} s (stop_within_s): {', '.join(late)}")


def _notify(state: str) -> None:
    """Tells systemd, where it asked to be told (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
            notifying.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            notifying.sendall(state.encode())
    except OSError as error:
        log.warning("systemd was not told %s, at NOTIFY_SOCKET %r: %s", state, address, error)
