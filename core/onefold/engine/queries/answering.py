"""A worker's side: answers questions between two steps of its event loop.

A question is a line of JSON (`Question`), and behind it an Arrow stream of the keys; an answer a line of JSON, and an
Arrow stream of rows. Nothing of it is code.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from onefold.core.errors import ConfigError, OnefoldError, kind_of
from onefold.engine.logics.logic import EventTimed, Logic
from onefold.engine.queries.undo import Moment, QueryableBackend
from onefold.engine.queries.views import View, views_of
from onefold.engine.state.columns.block_codec import from_stream, to_stream
from onefold.engine.workers.frames import Incoming, Outgoing
from onefold.flow.graph import Graph, Node

__all__ = ["ASKERS_MAX", "Answering", "Question", "Views", "answer", "packed", "queryable", "unpacked"]

ASKERS_MAX = 64  # connections at once

Views = tuple[QueryableBackend, Mapping[str, View]]  # of one operator in one subtask


@dataclass(frozen=True, slots=True)
class Question:
    """Of the state of an operator, and of which view. Without keys: of at most `limit`, whichever they are."""

    uid: str
    state: str
    is_committed: bool
    limit: int | None = None


def packed(head: Mapping[str, Any], rows: pa.RecordBatch | None) -> bytes:
    return json.dumps(head).encode() + b"\n" + (b"" if rows is None else to_stream(rows).to_pybytes())


def unpacked(data: bytes | bytearray) -> tuple[dict[str, Any], pa.RecordBatch | None]:
    """Raises ValueError for what `packed` has not made, and DataLoss for rows that it has not."""
    head, _, rows = bytes(data).partition(b"\n")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.100} is no head")  # noqa: TRY004  # of the bytes
    return found, from_stream(rows) if rows else None


def answer(
    views: Mapping[str, Views], question: Question, keys: pa.RecordBatch | None
) -> tuple[Moment, pa.RecordBatch]:
    """The rows, and the epoch of which they are. Raises ConfigError for a state that there is not."""
    backend, by_state = views.get(question.uid, (None, {}))
    if backend is None or question.state not in by_state:
        raise ConfigError("state-unknown", f"no state {question.state!r} of {question.uid!r} can be asked for here")
    view = by_state[question.state]
    if keys is None:
        keys = view.some(question.limit or 0)
    return backend.moment(question.is_committed), view.get(keys, question.is_committed)


def queryable(graph: Graph, node: Node, logic: Logic, backend: QueryableBackend) -> Views:
    """Once the node's logic has its tables and its clock of the backend."""
    if isinstance(logic, EventTimed):
        clock = logic.clock
        backend.begin(lambda: None if (status := clock()) is None else status.watermark_us)
    return backend, views_of(graph, node, backend)


class Answering:
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
