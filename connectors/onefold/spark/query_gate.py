"""How a query is held and ended between two of its batches, where nothing is unfinished: by a call, or by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from onefold.core import Terminal

DRAINED = "query-drained"  # the code of the error that ends a query here
_LOOK_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Gate:
    """Batches go through it one at a time. Any thread may hold them, let them go on, or end the query at it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_held = self._is_ending = self._is_passing = False

    @contextmanager
    def batch(self, goes_on: Callable[[], bool]) -> Iterator[None]:
        """One batch. It waits while batches are held. Raises Terminal where the query is to end before it, or was
        stopped meanwhile: `goes_on` tells."""
        while not self._enter():
            if not goes_on():  # it asks Spark, which may not answer: nobody waits for that
                raise Terminal("query-stopped", "the query was stopped while it was paused: nothing was begun")
        try:
            yield
        finally:
            with self._changed:
                self._is_passing = False
                self._changed.notify_all()

    def _enter(self) -> bool:
        """Begin a batch. False where batches are held, after a while."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending or not self._is_held, _LOOK_S)
            if self._is_ending:
                raise Terminal("query-drained", "the query has ended after a complete epoch, as it was asked to")
            self._is_passing = not self._is_held
            return self._is_passing

    def begin(self) -> None:
        """For another query: the end that was asked for was the last one's."""
        with self._changed:
            self._is_ending = False

    def hold(self) -> None:
        with self._changed:
            self._is_held = True

    def open(self) -> None:
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def end(self) -> None:
        """The next batch ends its query, and one that is held does now."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    @property
    def is_held(self) -> bool:
        return self._is_held

    def wait_quiet(self, within_s: float) -> bool:
        """Wait until no batch is on its way. False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_passing, within_s)


@contextmanager
def interrupted_by(end: Callable[[signal.Signals], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM in the block calls `end`, in a thread of its own: this one may be in the middle of a
    call to the JVM. A second one does what it did before.

    Only in the main thread, which alone has signals, and in the place of Python's and PySpark's handlers: a script's
    own stay. PySpark's asks the JVM in the middle of another call, and takes one's answer for the other's.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _SIGNALS if is_main and _is_free(number)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        restore()
        threading.Thread(target=end, args=(signal.Signals(number),), daemon=True).start()

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        restore()


def _is_free(number: signal.Signals) -> bool:
    handler = signal.getsignal(number)
    is_of_spark = getattr(handler, "__module__", "").startswith("pyspark.")
    return handler in (signal.SIG_DFL, signal.default_int_handler) or is_of_spark
