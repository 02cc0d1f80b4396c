"""Logging in, against a server that has SASL's messages and frames but no Kerberos: a KDC is not at hand."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
from harness.errors import raises

from onefold.clients.hbase import HBaseSettings, compact_protocol
from onefold.clients.hbase.compact_protocol import SERVICE, thrift
from onefold.clients.hbase.thrift_connection import IN_FLIGHT_MAX, ThriftConnection
from onefold.core.errors import ConfigError, Retriable

START, OK, BAD, COMPLETE = 1, 2, 3, 5
LONG = b"t" * 100_000


class Client:
    """sasl.Client, as far as it is used. With the quality "auth" it encodes nothing."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def setAttr(self, name: str, value: str) -> None:  # noqa: N802 - the package's own name
        self.told[name] = value

    def init(self) -> None: ...

    def start(self, mechanism: str) -> tuple[bool, str, bytes]:
        return True, mechanism, "/".join((self.told["service"], self.told["host"])).encode()

    def encode(self, data: bytes) -> tuple[bool, bytes]:
        return True, data


@pytest.fixture(autouse=True)
def _sasl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sasl", SimpleNamespace(Client=Client))


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _told(connection: socket.socket) -> tuple[int, bytes]:
    status, length = struct.unpack(">BI", _received(connection, 5))
    return status, _received(connection, length)


def _answered(connection: socket.socket) -> None:
    """Every question in every frame: yes."""
    result = SERVICE.tableExists_result()
    result.success = True
    said, pending = compact_protocol.encoded(result, "binary"), b""
    while True:
        pending += _received(connection, struct.unpack(">I", _received(connection, 4))[0])
        while (end := pending.find(b"\0\0", 4 + 4 + 11 + 4 + len(LONG))) >= 0:
            number, pending = pending[4 + 4 + 11 : 4 + 4 + 11 + 4], pending[end + 2 :]
            reply = struct.pack(">Ii", 0x80010002, 11) + b"tableExists" + number + said
            connection.sendall(struct.pack(">I", len(reply)) + reply)


@contextmanager
def _server(status: int | None, told: list[tuple[int, bytes]]) -> Iterator[HBaseSettings]:
    def serve() -> None:
        with listening.accept()[0] as connection:
            told.extend((_told(connection), _told(connection)))
            if status is None:
                return
            connection.sendall(struct.pack(">BI", status, 0))
            try:
                _answered(connection)
            except EOFError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield HBaseSettings(f"127.0.0.1:{listening.getsockname()[1]}", timeout_s=5.0, kerberos_service="hbase")
        thread.join()


def test_requests_go_in_frames_behind_the_login_as_who_the_ticket_is_for() -> None:
    told: list[tuple[int, bytes]] = []
    with (
        _server(COMPLETE, told) as settings,
        closing(ThriftConnection(settings.addresses()[0], settings)) as connection,
    ):
        request = compact_protocol.arguments("tableExists", "binary", tableName=thrift.TTableName(qualifier=LONG))
        asked = IN_FLIGHT_MAX + 1
        assert connection.ask_all("tableExists", [request] * asked) == [True] * asked
    assert told == [(START, b"GSSAPI"), (OK, b"hbase/127.0.0.1")]


def test_a_server_that_lets_nobody_in_says_who_was_refused_and_where_to_look() -> None:
    with _server(BAD, []) as settings, raises(ConfigError, "hbase-login-refused"):
        ThriftConnection(settings.addresses()[0], settings)


def test_a_server_that_dies_during_a_login_is_waited_for() -> None:
    with _server(None, []) as settings, raises(Retriable, "hbase-unreachable"):
        ThriftConnection(settings.addresses()[0], settings)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sasl", None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = HBaseSettings(f"127.0.0.1:{listening.getsockname()[1]}", kerberos_service="hbase")
        with raises(ConfigError, "package-missing"):
            ThriftConnection(settings.addresses()[0], settings)
