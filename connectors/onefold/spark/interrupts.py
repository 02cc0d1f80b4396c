"""Ctrl-C and SIGTERM where a script waits for its query."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupted_by"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
