"""Frames between processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

from onefold.engine.dataflow.items import Barrier
from onefold.engine.workers.frames import Incoming, Outgoing, decoded_item, encoded_item, receive_message
from onefold.flow.time.clocks import Times

Ends = tuple[Outgoing, Incoming]


@pytest.fixture
def ends() -> Iterator[Ends]:
    out, into = socket.socketpair()
    with out, into:
        yield Outgoing(out), Incoming(into)


@pytest.mark.parametrize(
    "rows",
    [
        pa.record_batch({"n": pa.array([1, None], pa.int64()), "s": ["a", "b"]}),
        pa.record_batch({"n": pa.array(range(10)), "s": list("abcdefghij")}).slice(3, 4),
        pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()}),
        pa.record_batch({"empty": pa.array([], pa.int64())}),
    ],
)
def test_a_batch_comes_as_it_was_sent(ends: Ends, rows: pa.RecordBatch) -> None:
    out, into = ends
    out.put(encoded_item(rows))
    times = Times(frozenset({("t", "t/0")}), {("t", "t/0"): 7}, frozenset({"s"}))
    out.put(encoded_item(times))
    out.put(encoded_item(Barrier(7)))
    out.send()
    first, *others = [decoded_item(frame, rows.schema) for frame in into.frames()]
    assert rows.equals(first) and others == [times, Barrier(7)]


def test_what_a_socket_does_not_take_waits_and_is_counted(ends: Ends) -> None:
    out, into = ends
    rows = pa.record_batch({"n": pa.array(range(1 << 20))})
    out.put(encoded_item(rows))
    out.send()
    assert out.pending_bytes > 0
    found: list[object] = []
    while not found:
        found = [decoded_item(frame, rows.schema) for frame in into.frames()]
        out.send()
    assert out.pending_bytes == 0 and rows.equals(found[0])


def test_the_end_of_the_other_side_is_noticed(ends: Ends) -> None:
    out, into = ends
    out.message("last words")
    out.send_all()
    out.socket.close()
    messages = into.messages()
    assert next(messages) == "last words"
    with pytest.raises(EOFError):
        next(messages)


def test_the_first_message_is_read_without_what_follows(ends: Ends) -> None:
    out, into = ends
    out.message("first")
    out.message("second")
    out.send_all()
    into.socket.setblocking(True)
    assert receive_message(into.socket) == "first"
    into.socket.setblocking(False)
    assert list(into.messages()) == ["second"]
