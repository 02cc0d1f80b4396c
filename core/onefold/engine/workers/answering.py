"""Answers questions between two steps of a worker's event loop."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from onefold.core.errors import OnefoldError, kind_of
from onefold.engine.queries.questions import Question, Views, answer, packed, unpacked
from onefold.engine.workers.frames import Incoming, Outgoing

ASKERS_MAX = 64  # connections at once


class QueryServer:
    """Listens at `path`. `views` are those of its subtasks, by the uids of their operators."""

    def __init__(self, path: str, views: Mapping[str, Views]) -> None:
        self._views = views
        Path(path).unlink(missing_ok=True)  # of the worker before
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(path)
        Path(path).chmod(0o600)
        self.socket.listen(ASKERS_MAX)
        self.socket.setblocking(False)
        self._askers: dict[socket.socket, tuple[Incoming, Outgoing]] = {}
        self._asked: deque[tuple[Outgoing, bytes]] = deque()

    def watch(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        selector.register(self.socket, selectors.EVENT_READ, self._accept)

    def turn(self) -> bool:
        """Answer one question. Whether others wait."""
        if self._asked:
            outgoing, data = self._asked.popleft()
            if outgoing.socket in self._askers:
                outgoing.put((0, self._answered(data)))
                self._send(outgoing)
        return bool(self._asked)

    def completed(self, epoch: int, timestamp_ms: int) -> None:
        for backend, _ in self._views.values():
            backend.completed(epoch, timestamp_ms)

    def _answered(self, data: bytes) -> bytes:
        try:
            head, keys = unpacked(data)
            moment, rows = answer(self._views, Question(**head), keys)
            return packed(asdict(moment), rows)
        except OnefoldError as error:
            return packed({"kind": kind_of(error), "code": error.code, "message": error.message}, None)
        except Exception as error:  # the flow goes on, whatever somebody asks
            return packed(
                {"kind": "ConfigError", "code": "state-question", "message": f"it cannot be read: {error!r}"}, None
            )

    def _accept(self) -> None:
        with suppress(OSError):
            asker, _ = self.socket.accept()
            if len(self._askers) == ASKERS_MAX:
                asker.close()
                return
            self._askers[asker] = Incoming(asker), Outgoing(asker)
            self._selector.register(asker, selectors.EVENT_READ, partial(self._receive, asker))

    def _receive(self, asker: socket.socket) -> None:
        incoming, outgoing = self._askers[asker]
        try:
            self._send(outgoing)
            if asker in self._askers:
                self._asked += [(outgoing, bytes(data)) for _, data in incoming.frames()]
        except (EOFError, OSError, MemoryError):  # the latter where it is no question at all
            self._close(asker)

    def _send(self, outgoing: Outgoing) -> None:
        asker = outgoing.socket
        try:
            outgoing.send()
        except OSError:
            self._close(asker)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing.pending_bytes else 0)
        self._selector.modify(asker, events, partial(self._receive, asker))

    def _close(self, asker: socket.socket) -> None:
        if self._askers.pop(asker, None) is not None:
            self._selector.unregister(asker)
            asker.close()
