"""Frames on Unix sockets that never block: a kind, a length, and so many bytes. Batches are Arrow IPC, the rest is
pickled."""

from __future__ import annotations

import pickle
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from onefold.engine.dataflow.items import Barrier

_HEADER = struct.Struct("<BQ")
_RUN = struct.Struct("<Q")
_BATCH, _STREAM, _BARRIER, _MESSAGE, _PICKLED = range(5)
_SENT_MAX = 64  # buffers of one call

Frame = tuple[int, Any]  # a kind, and a buffer


class Outgoing:
    """What is to be sent on a socket, and has not gone yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)
        self.pending_bytes = 0
        self._buffers: deque[memoryview] = deque()

    def put(self, frame: Frame) -> None:
        kind, payload = frame
        view = memoryview(payload).cast("B")
        for buffer in (memoryview(_HEADER.pack(kind, len(view))), view):
            if len(buffer):
                self._buffers.append(buffer)
                self.pending_bytes += len(buffer)

    def message(self, value: Any) -> None:
        self.put((_MESSAGE, pickle.dumps(value)))

    def send(self) -> None:
        """As much as the socket takes now. Raises OSError where nobody reads any more."""
        while self._buffers:
            try:
                sent = self.socket.sendmsg([self._buffers[n] for n in range(min(len(self._buffers), _SENT_MAX))])
            except BlockingIOError:
                return
            self.pending_bytes -= sent
            while sent:
                first = self._buffers[0]
                if sent < len(first):
                    self._buffers[0] = first[sent:]
                    break
                sent -= len(first)
                self._buffers.popleft()

    def send_all(self) -> None:
        """Everything, for as long as it takes."""
        self.socket.setblocking(True)
        try:
            self.send()
        finally:
            self.socket.setblocking(False)


class Incoming:
    """What has come on a socket, frame by frame."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)
        self._kind: int | None = None  # of the frame whose bytes are coming; None while its header is
        self._target = memoryview(bytearray(_HEADER.size))
        self._filled = 0

    def frames(self) -> Iterator[Frame]:
        """The frames that are whole by now. Raises EOFError where the other side has closed, or ended."""
        while True:
            while self._filled < len(self._target):
                try:
                    count = self.socket.recv_into(self._target[self._filled :])
                except BlockingIOError:
                    return
                except ConnectionResetError as error:
                    raise EOFError from error
                if count == 0:
                    raise EOFError
                self._filled += count
            if self._kind is None:
                kind, length = _HEADER.unpack(self._target)
                self._kind, self._target, self._filled = kind, memoryview(bytearray(length)), 0
                continue
            frame = self._kind, self._target.obj
            self._kind, self._target, self._filled = None, memoryview(bytearray(_HEADER.size)), 0
            yield frame

    def messages(self) -> Iterator[Any]:
        """The messages that are whole by now. Raises EOFError as `frames`."""
        for _, payload in self.frames():
            yield pickle.loads(payload)


def encoded_item(item: Any) -> Frame:
    """Of what a channel carries: batches, barriers, or else what pickles."""
    if isinstance(item, Barrier):
        return _BARRIER, _RUN.pack(item.run)
    if not isinstance(item, pa.RecordBatch):
        return _PICKLED, pickle.dumps(item)
    if any(pa.types.is_dictionary(field.type) for field in item.schema):  # a batch alone has no dictionaries
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, item.schema) as stream:
            stream.write_batch(item)
        return _STREAM, sink.getvalue()
    return _BATCH, item.serialize()


def decoded_item(frame: Frame, schema: pa.Schema) -> Any:
    kind, payload = frame
    if kind == _BATCH:
        return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
    if kind == _STREAM:
        return pa.ipc.open_stream(pa.py_buffer(payload)).read_next_batch()
    if kind == _PICKLED:
        return pickle.loads(payload)
    return Barrier(*_RUN.unpack(payload))


def receive_message(sock: socket.socket) -> Any | None:
    """The next message, however long it takes, and no byte of what follows; None where the other side has ended."""
    header = sock.recv(_HEADER.size, socket.MSG_WAITALL)
    if len(header) < _HEADER.size:
        return None
    _, length = _HEADER.unpack(header)
    payload = bytearray()
    while len(payload) < length:
        received = sock.recv(min(length - len(payload), 1 << 20))
        if not received:
            return None
        payload += received
    return pickle.loads(payload)
