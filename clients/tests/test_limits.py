"""What a Thrift server shows of its limits, as HBase 2.6.1 answers on /conf, and what is said of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from onefold.clients.hbase import HBaseSettings
from onefold.clients.hbase.client_settings import Address
from onefold.clients.hbase.limits import Limits, limits, misfits

HERE = Address("127.0.0.1", 9090)
SETTINGS = HBaseSettings(str(HERE))
DEFAULTS = {  # of a server without a setting of its own, as it says them
    "hbase.client.operation.timeout": "1200000",
    "hbase.client.keyvalue.maxsize": "10485760",
    "hbase.regionserver.thrift.framed": "false",
    "hbase.regionserver.thrift.framed.max_frame_size_in_mb": "2",
    "hbase.thrift.maxWorkerThreads": "1000",
}
BOUNDED = {**DEFAULTS, "hbase.client.operation.timeout": "8000"}


@contextmanager
def _showing(settings: dict[str, str] | None) -> Iterator[int]:
    """The port of a page that shows these, or no settings at all."""
    properties = [{"key": key, "value": value, "isFinal": False} for key, value in (settings or {}).items()]
    page = json.dumps({"properties": properties} if settings is not None else "<html>").encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/conf?format=json" else 404)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_settings_that_a_server_shows_are_read_and_defaults_are_hbases() -> None:
    with _showing(DEFAULTS) as port:
        assert limits(HERE, port) == Limits(HERE, 1200.0, False, False, 2 << 20, 60.0, 1000)


def test_a_server_that_shows_nothing_is_not_guessed_at() -> None:
    with _showing(None) as port:
        assert limits(HERE, port) is None
    assert limits(HERE, 1) is None, "nobody listens there"


def _said(shown: dict[str, str]) -> list[str]:
    with _showing(shown) as port:
        seen = limits(HERE, port)
    assert seen is not None
    return list(misfits(seen, SETTINGS))


def test_where_all_fits_nothing_is_said() -> None:
    assert _said(BOUNDED) == []


def test_a_server_that_outlasts_its_clients_is_named() -> None:
    (says,) = _said(DEFAULTS)
    assert "up to 1200 s" in says and "timeout_s=30" in says


def test_each_setting_that_does_not_fit_the_server_is_said() -> None:
    odd = {
        "hbase.regionserver.thrift.framed": "true",
        "hbase.regionserver.thrift.framed.max_frame_size_in_mb": "1",
        "hbase.thrift.server.socket.read.timeout": "20000",
        "hbase.thrift.maxWorkerThreads": "4",
    }
    said = _said({**BOUNDED, **odd})
    words = ("speaks framed, binary", "frames of 1,048,576 bytes", "after 20 s", "serves 4 connections")
    assert [word in says for word, says in zip(words, said, strict=True)] == [True] * 4
