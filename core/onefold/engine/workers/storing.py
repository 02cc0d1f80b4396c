"""Stores snapshots beside the stream, in a worker's one thread: file systems have no event loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from onefold.core.checks import present
from onefold.core.contract import Committable

__all__ = ["Stored", "StoringThread", "stored_at_once"]

Store = Callable[[], Committable]


class Stored:
    """Implements Storing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Committable | None = None
        self._error: BaseException | None = None
        self.is_done, self.ended_s = False, 0.0

    def run(self) -> None:
        try:
            self._kept = self._store()
        except BaseException as error:  # the stream ends by it
            self._error = error
        self.ended_s = time.monotonic()
        self.is_done = True

    def result(self) -> Committable:
        if self._error is not None:
            raise self._error
        return present(self._kept, "it is stored")


def stored_at_once(store: Store) -> Stored:
    stored = Stored(store)
    stored.run()
    return stored


class StoringThread:
    """Stores one snapshot after the other, in their order. `socket` can be read where one is stored."""

    def __init__(self) -> None:
        self.socket, self._waker = socket.socketpair()
        self.socket.setblocking(False)
        self._waiting = SimpleQueue[Stored]()
        self._thread: threading.Thread | None = None

    def store(self, store: Store) -> Stored:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="onefold-storing", daemon=True)
            self._thread.start()
        stored = Stored(store)
        self._waiting.put(stored)
        return stored

    def woken(self) -> None:
        with suppress(BlockingIOError):
            self.socket.recv(1024)

    def _run(self) -> None:
        while True:
            self._waiting.get().run()
            self._waker.send(b"\0")
