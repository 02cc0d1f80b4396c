"""Runs pipelines until they end or the process is told to: SIGTERM and SIGINT end each after a complete epoch."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pyspark.sql import SparkSession

from onefold.core import Fenced, Retriable
from onefold.daemon.control import Controls
from onefold.daemon.pipeline_run import Run, RunState

__all__ = ["StopSignals", "serve", "stop_signals"]

_LOOK_S = 0.2
_GRACE_S = 5.0  # for a stop that hangs in a call to a JVM that hangs

log = logging.getLogger("onefold")


class StopSignals:
    """The signals that asked the process to stop. Without a lock: a signal handler that waits for one may wait for the
    thread that it has interrupted."""

    def __init__(self) -> None:
        self.by: list[signal.Signals] = []


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Notes SIGTERM and SIGINT, instead of ending the process. With the second one it ends at once, with 75. Enter it
    in the main thread."""
    asked = StopSignals()

    def stop(number: int, _frame: FrameType | None) -> None:
        if asked.by:
            _end_at_once("a second signal came")
        asked.by.append(signal.Signals(number))

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(controls: Controls, spark: SparkSession, asked: StopSignals) -> int:
    """Start all, and wait for their ends; one that its operator has stopped keeps the process. Returns the process's
    exit code: that of Fenced if any was taken over, else that of the first that failed, else 0.

    Where a pipeline is not at rest `stop_within_s` after the process was asked to stop, it ends at once, with 75: the
    next start resolves what it has begun.
    """
    if asked.by:
        return 0
    for control in controls:
        control.begin(spark)
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
        _stop(runs)
    for run in runs:
        run.join()
    codes = [run.error.exit_code for run in runs if run.error is not None]
    return Fenced.exit_code if Fenced.exit_code in codes else next(iter(codes), 0)


def _stop(runs: list[Run]) -> None:
    began_s = time.monotonic()
    at_rest: list[str] = []

    def stop(run: Run) -> None:
        try:
            if run.stop(run.pipeline.stop_within_s):
                at_rest.append(run.name)
        except Exception:
            log.exception("pipeline %r could not be stopped", run.name)

    threads = [(run, threading.Thread(target=stop, args=(run,), daemon=True)) for run in runs]
    for _, thread in threads:
        thread.start()
    for run, thread in threads:
        left_s = began_s + run.pipeline.stop_within_s + _GRACE_S - time.monotonic()
        thread.join(min(max(0.0, left_s), threading.TIMEOUT_MAX))
    if late := [run.name for run in runs if run.name not in at_rest]:
        took_s = time.monotonic() - began_s
        _end_at_once(f"not at rest after {took_s:.0f} s (stop_within_s): {', '.join(late)}")


def _end_at_once(because: str) -> None:
    try:
        log.error("%s: the process ends now, and the next start resolves what is unfinished", because)
        sys.stderr.flush()
    finally:
        os._exit(Retriable.exit_code)


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
