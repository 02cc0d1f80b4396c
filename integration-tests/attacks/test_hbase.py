"""HBase's sink beside others who write there, and Thrift servers that answer anything."""

from __future__ import annotations

import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.hbase import HBaseSettings, HBaseTable, table_admin
from onefold.core import ConfigError, Retriable, TaskId
from onefold.sinks import HBaseSink

pytestmark = pytest.mark.xdist_group("hbase")

CALL = b"getMultiple"
HEAD = struct.pack(">Ii", 0x80010002, len(CALL)) + CALL + struct.pack(">i", 1)
A_LIST = HEAD + b"\x0f\x00\x00\x0c"
MANY = struct.pack(">i", 2**31 - 1)
ANSWERS = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no result": HEAD + b"\0",
    "a list without end": A_LIST + MANY,
    "a list of fewer than none": A_LIST + struct.pack(">i", -5) + b"\0\0",
    "a row of two gigabytes": A_LIST + struct.pack(">i", 1) + b"\x0b\x00\x01" + MANY,
    "structs within structs": HEAD + b"\x0c\x00\x63" * 200_000,
    "a call's name of two gigabytes": struct.pack(">I", 0x80010002) + MANY,
    "nothing": b"",
}


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives this answer to whatever it is asked, and then waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=reply, args=(accepted,)).start()

        def reply(accepted: socket.socket) -> None:
            with accepted:
                try:
                    accepted.recv(1 << 16)
                    accepted.sendall(answer)
                except OSError:
                    return
                is_over.wait()

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            is_over.set()
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


@pytest.mark.parametrize("transport", ["buffered", "framed"])
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.attack(
    who="whatever listens in a Thrift server's place",
    does="answers junk, or nothing",
    gets="to be asked again, for a while",
)
def test_junk_in_a_thrift_servers_place_ends_as_a_named_error(answer: str, transport: str) -> None:
    said = ANSWERS[answer]
    with answering(struct.pack(">i", len(said)) + said if transport == "framed" else said) as servers:
        settings = HBaseSettings(servers, transport=transport, timeout_s=0.3)
        begun_s = time.monotonic()
        with raises(Retriable, "hbase-unanswered"):
            HBaseTable(settings, "t").get(pa.array([b"k"], pa.binary()), [(b"f", b"q")])
        assert time.monotonic() - begun_s < 5


@pytest.mark.parametrize("table", ["onefold_ledger", "default:onefold_ledger"])
def test_the_ledgers_table_is_no_target_by_any_of_its_names(table: str) -> None:
    with raises(ConfigError, "ledger-is-target"):
        HBaseSink("h:1", table, row_key="k", family="l")
    with raises(ConfigError, "ledger-is-target"):
        HBaseSink("h:1", "onefold_ledger", row_key="k", family="l", ledger=table)


NAMES = ["", " ", "a:b", "f:", "\0", "a\nb", "ä😀", "x" * 40_000, "_deleted", "_onefold.id"]


@pytest.mark.servers
@pytest.mark.attack(
    who="who writes records",
    does="names fields of theirs as HBase or the sink names cells",
    gets="cells of exactly these names, or an error that says which",
)
def test_qualifiers_that_records_choose_are_kept_exactly_or_refused(hbase_server: Any) -> None:
    settings, table = HBaseSettings(hbase_server.servers), f"test_{uuid.uuid4().hex[:12]}"
    sink = HBaseSink(settings, table, row_key="k string", family="f", delete_when_true="gone", delete_mode="real")
    batch = pa.record_batch(
        {"k": ["one", "two"], "gone": [False, True]} | {name: [f"1{name[:9]}", "2"] for name in NAMES}
    )
    sink.open("p", batch.schema)
    writer = sink.writer(TaskId("p", 1, 1, 1_700_000_000_000, uuid.uuid4()))
    writer.write(batch)
    writer.prepare()
    found = HBaseTable(settings, table).get(
        pa.array([b"one", b"two"], pa.binary()), [(b"f", n.encode()) for n in NAMES]
    )
    assert [values.to_pylist() for values in found] == [[f"1{name[:9]}".encode(), None] for name in NAMES]
    table_admin.drop(settings, table)
    schema = pa.schema(
        [("k", pa.string()), ("gone", pa.bool_()), ("_deleted", pa.int64()), ("_onefold.id", pa.int64())]
    )
    with raises(ConfigError, "column-mapped-twice"):
        HBaseSink(settings, table, row_key="k", family="f", delete_when_true="gone").open("p", schema)
    summed = HBaseSink(settings, table, row_key="k", family="f", mode="rolling", merge={"_onefold.id": "sum"})
    with raises(ConfigError, "column-name-reserved"):
        summed.open("p", pa.schema([("k", pa.string()), ("_onefold.id", pa.int64())]))
