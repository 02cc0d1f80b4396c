"""A pipeline in this process that runs until a test has seen enough."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from onefold.pipeline import Pipeline

__all__ = ["run_until"]


def run_until(pipeline: Pipeline, is_done: Callable[[], bool]) -> None:
    """Runs it, and sends SIGTERM to this process once that is so, and once it listens to that; one that ends before is
    over then."""
    is_over, before = threading.Event(), signal.getsignal(signal.SIGTERM)

    def end() -> None:
        while not is_over.wait(0.05):
            if signal.getsignal(signal.SIGTERM) is not before and is_done():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watching = threading.Thread(target=end, daemon=True)
    watching.start()
    try:
        pipeline.run()
    finally:
        is_over.set()
        watching.join()
