"""Stores snapshots beside the stream, in a worker's one thread: file systems have no event loop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from onefold.engine.dataflow.subtask import Kept


class StoringThread:
    """Stores one snapshot after the other, in their order. `socket` can be read where one is stored."""

    def __init__(self) -> None:
        self.socket, self._waker = socket.socketpair()
        self.socket.setblocking(False)
        self._thread = ThreadPoolExecutor(1, "onefold-storing")

    def store(self, store: Callable[[], Kept]) -> Future[Kept]:
        stored = self._thread.submit(store)
        stored.add_done_callback(lambda _: self._waker.send(b"\0"))
        return stored

    def woken(self) -> None:
        with suppress(BlockingIOError):
            self.socket.recv(1024)


def stored_at_once(store: Callable[[], Kept]) -> Future[Kept]:
    stored = Future[Kept]()
    stored.set_result(store())
    return stored
