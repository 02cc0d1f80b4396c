"""What a process keeps from one task to the next, such as open connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value of this process, `now`, and the lock under which it is used. A forked child starts with a new one.

    The child must neither use nor close its parent's connections and clients, so it keeps them as they are: they would
    be closed with the last reference. Fork before the first connection all the same: a child that is forked while
    another thread looks up a host's name inherits glibc's lock, and waits for ever when it looks one up itself.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._inherited: list[T] = []
        self._begin()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin(self) -> None:
        self.lock = threading.Lock()  # another thread of the parent may have held the parent's
        self.now = self._make()

    def _begin_anew(self) -> None:
        self._inherited.append(self.now)
        self._begin()
