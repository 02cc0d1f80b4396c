"""What another user of the daemon's machine, or a stranger at its port, can do who has not its token."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from harness.browser import chromium
from harness.certificates import self_signed
from harness.daemon_stubs import daemon_of, whole
from harness.passwords import plain_url
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.core.waiting import Wait
from onefold.daemon.access.proof import NONCE
from onefold.daemon.access.token import make_own_token, own_token_file
from onefold.daemon.api.listening import LimitedListener, Listening, Loop
from onefold.operate.letters.letter import NotSendable, RecordPlace
from onefold.operate.letters.resend import send_again
from onefold.sinks import PostgresSink

NOBODY = 65534
PYTHON = "/usr/bin/python3"  # another user may not enter the folder of ours
ANOTHER_USER = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason="only root can be another user, too, who needs a Python"
)
TAKES_ANYTHING = r"""
import socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
body = b'[{"name":"x\\u001b[31m","state":"running"}]'
while True:
    taken, _ = listening.accept()
    while asked := taken.recv(65536):
        print(asked, flush=True)
        head = b"HTTP/1.1 %s\r\n%s: %s\r\ncontent-length: %d\r\n\r\n"
        taken.sendall(head % (sys.argv[2].encode(), b"X-Onefold-Nonce", b"a.b.c.d", len(body)) + body)
"""
PASSES_ON = r"""
import socket, sys, threading
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
def pass_on(here, there):
    while said := here.recv(65536):
        there.sendall(said)
    there.shutdown(socket.SHUT_WR)
while True:
    here, _ = listening.accept()
    there = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for ends in ((here, there), (there, here)):
        threading.Thread(target=pass_on, args=ends, daemon=True).start()
"""
LEAVES_A_WORKER = """
navigator.serviceWorker.register("/worker.js")
    .then(() => navigator.serviceWorker.ready).then(() => document.title = "left");
"""
WORKER = """
self.onactivate = (event) => event.waitUntil(clients.claim());
const page = () => new Response("<title>taken</title>", {headers: {"content-type": "text/html"}});
self.onfetch = (event) => event.respondWith(page());
"""
LETTERS = (
    "source_topic text, source_partition int, source_offset bigint, source_timestamp timestamptz, key bytea,"
    " value bytea, headers text, reason text, pipeline text, epoch bigint"
)


def command(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@contextmanager
def as_nobody(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A program of another user of this machine. It has printed a line."""
    more: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/", **more) as program:
        try:
            assert program.stdout is not None and program.stdout.readline()
            yield program
        finally:
            program.send_signal(signal.SIGKILL)


class LeavesAWorker(BaseHTTPRequestHandler):
    """A page that has the browser keep a worker, which answers in the daemon's place from then on."""

    def do_GET(self) -> None:
        is_worker = self.path == "/worker.js"
        self.send_response(200)
        self.send_header("content-type", "text/javascript" if is_worker else "text/html")
        self.end_headers()
        self.wfile.write((WORKER if is_worker else f"<script>{LEAVES_A_WORKER}</script>").encode())

    def log_message(self, *_said: object) -> None: ...


@contextmanager
def leaving_a_worker() -> Iterator[int]:
    """The port of such a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), LeavesAWorker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@ANOTHER_USER
@pytest.mark.slow
@pytest.mark.attack(
    who="another user of the daemon's machine",
    does="listens on the daemon's port while it is down, and answers the commands and what their user sees",
    gets="no token, a proof that is good nowhere, and none of its text is shown",
)
@pytest.mark.parametrize("says", ["200 OK", "401 Unauthorized"])
def test_who_listens_in_the_daemons_place_gets_no_token_and_is_not_believed(tmp_path: Path, says: str) -> None:
    token, port = make_own_token(), free_port()
    (tmp_path / "token").write_text("a-token-of-this-test-alone\n")
    heard = ""
    with as_nobody(PYTHON, "-c", TAKES_ANYTHING, str(port), says) as other:
        for words in (["status"], ["page"], ["stop", "orders"], ["epochs", "orders"]):
            for file in ([], ["--token-file", str(tmp_path / "token")]):
                ended = command(*words, *file, "--url", f"http://127.0.0.1:{port}")
                assert isinstance(ended.exception, ConfigError) and ended.exception.code == "token-wrong"
                assert "\x1b" not in ended.output + str(ended.exception)
        assert other.stdout is not None
        other.kill()
        heard = other.stdout.read()
    assert heard.count("Authorization: Onefold") == 8
    assert token not in heard and "a-token-of-this-test-alone" not in heard
    proof = re.search(r"Authorization: (Onefold [^\\]+)", heard)
    assert proof is not None
    with daemon_of(whole(tmp_path)) as ask:
        assert ask("GET", "/pipelines", Authorization=proof[1]).status == 401


@ANOTHER_USER
@pytest.mark.attack(
    who="another user of the daemon's machine",
    does="listens where a command asks, and passes all on to the user's daemon elsewhere, for the key of its page",
    gets="no key: the proof is of the address that was asked, and the daemon has another",
)
def test_who_passes_on_to_a_daemon_is_not_taken_for_it(tmp_path: Path) -> None:
    port = free_port()
    with daemon_of(whole(tmp_path)) as ask:
        with as_nobody(PYTHON, "-c", PASSES_ON, str(port), ask.url.rpartition(":")[2]):
            for words in (["status"], ["page"], ["stop", "orders"]):
                ended = command(*words, "--url", f"http://127.0.0.1:{port}")
                assert isinstance(ended.exception, ConfigError) and ended.exception.code == "token-wrong"
                assert "#key=" not in ended.output
            passed = command("status", "--insecure", "--url", f"http://127.0.0.1:{port}")
            assert passed.exit_code == 0, "a tunnel of the user's own"
        assert command("status", "--url", ask.url).exit_code == 0


@pytest.mark.slow
@pytest.mark.attack(
    who="another user of the daemon's machine",
    does="listens in its place while a browser asks for the page, and leaves a service worker there",
    gets="the key of a link that is opened in that browser, and not in a private window, which `onefold page` asks for",
)
def test_what_a_stranger_left_in_a_browser_is_not_in_its_private_window(tmp_path: Path) -> None:
    with chromium() as browser:
        usual, private = browser.new_context(), browser.new_context().new_page()
        with leaving_a_worker() as port:
            asked = usual.new_page()
            asked.goto(f"http://127.0.0.1:{port}/")
            asked.wait_for_function("document.title === 'left'")
        with daemon_of(whole(tmp_path), listening=Listening.of(f"127.0.0.1:{port}")) as ask:
            ended = command("page", "--url", ask.url)
            link = ended.stdout.strip()
            assert "private window" in ended.stderr
            opened = usual.new_page()
            opened.goto(link)
            assert opened.title() == "taken"
            private.goto(link)
            private.get_by_text("orders").first.wait_for()


@ANOTHER_USER
@pytest.mark.attack(
    who="another user of the daemon's machine",
    does="looks for the token that a daemon has made, and asks it without for states and dead letters",
    gets="nothing: the file is its user's alone",
)
def test_another_user_neither_reads_the_token_nor_is_answered(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path)) as ask:
        asks = f"import urllib.request as r; print(r.urlopen('{ask.url}/pipelines/orders/dead-letters').read())"
        reads = f"print(open({str(own_token_file())!r}).read())"
        for tries, said in ((asks, "HTTP Error 401"), (reads, "Permission denied")):
            other: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
            tried = [PYTHON, "-c", tries]
            ended = subprocess.run(tried, capture_output=True, text=True, cwd="/", timeout=60, check=False, **other)
            assert (ended.returncode, said in ended.stderr) == (1, True), ended.stderr


@pytest.mark.slow
@pytest.mark.attack(
    who="who reaches the daemon's port and has not its token",
    does="opens a thousand connections, over TLS too, and says nothing",
    gets="at most 200 files of its process, until the handshake's time is up, and no line in its log",
)
@pytest.mark.parametrize("is_tls", [False, True])
def test_silent_connections_take_few_files_and_no_lines(
    tmp_path: Path, is_tls: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Loop, "HANDSHAKE_WITHIN_S", 1.0)
    monkeypatch.setattr("onefold.daemon.api.listening.BoundedConnection.REQUEST_WITHIN_S", 1.0)
    caplog.set_level(logging.INFO)
    (tmp_path / "token").write_text("a-token-of-this-test-alone\n")
    certificate = self_signed(tmp_path, "api", "orders")
    secured = (certificate, certificate.with_suffix(".key")) if is_tls else ()
    with daemon_of(whole(tmp_path), listening=Listening.of("127.0.0.1:0", tmp_path / "token", *secured)) as ask:
        url = ask.url
        port, before = int(url.rpartition(":")[2]), files()
        caplog.clear()
        with silent(port, 1000):
            most = 0
            for _ in range(200):
                most = max(most, files())
                time.sleep(0.01)
            wait = Wait(120)
            while files() > before + 20:
                assert wait.again(), "those that said nothing are closed"
        assert before + 100 < most <= before + LimitedListener.OPEN_MAX + 20
        assert command("status", "--url", url, "--token-file", str(tmp_path / "token"), *ca(secured)).exit_code == 0
    assert [record for record in caplog.records if record.name.startswith(("asyncio", "uvicorn"))] == []


def ca(secured: tuple[Path, ...]) -> list[str]:
    return ["--ca", str(secured[0])] if secured else []


def files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def silent(port: int, count: int) -> Iterator[None]:
    """Another process that opens so many connections."""
    opens = (
        "import socket, sys, time, resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count + 50},) * 2)\n"
        "held = []\n"
        f"for _ in range({count}): held.append(socket.create_connection(('127.0.0.1', {port}), 10))\n"
        "print('all', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", opens], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "all\n"
            yield
        finally:
            other.kill()


@pytest.mark.attack(
    who="who reaches the daemon's port and has not its token",
    does="sends what is no HTTP, and asks time and again without a token",
    gets="400 and 401, and not a line in the log",
)
def test_requests_of_a_stranger_leave_no_lines_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with daemon_of(whole(tmp_path)) as ask:
        caplog.clear()
        port = int(ask.url.rpartition(":")[2])
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port), 10) as one:
                one.sendall(b"\x16\x03\x01\x02\x00\x01\xff\r\n\r\n")
                assert one.recv(64).startswith((b"HTTP/1.1 400", b""))
        nonces = {ask("GET", "/pipelines", Authorization="").headers[NONCE] for _ in range(50)}
        assert len(nonces) == 50
    assert [record for record in caplog.records if record.name.startswith(("asyncio", "uvicorn"))] == []


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.attack(
    who="a producer",
    does="sends unreadable records with tens of thousands of headers, which become dead letters",
    gets="the first of the headers shown, and an answer of bounded size",
)
def test_a_letters_headers_are_cut_where_they_are_read(postgres_server: Any, tmp_path: Path) -> None:
    name = "test_letters_bomb"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection, ExitStack() as stack:
        connection.execute(f"CREATE DATABASE {name}")
        stack.callback(connection.execute, f"DROP DATABASE {name} WITH (FORCE)")
        url = plain_url(postgres_server, name)
        with psycopg.connect(url) as there:
            there.execute(f"CREATE TABLE dead ({LETTERS})")
            headers = '[{"key": "", "value": "YQ=="}' + ', {"key": "", "value": "YQ=="}' * 44_999 + "]"
            for offset in range(10):
                values = (offset, b"k" * 1_000_000, b"{", headers, "r" * 1_000_000)
                there.execute("INSERT INTO dead VALUES ('orders', 0, %s, now(), %s, %s, %s, %s, 'orders', 1)", values)
        with daemon_of(whole(tmp_path, dead_letters=(PostgresSink(url, "dead"),))) as ask:
            answer = ask("GET", "/pipelines/orders/dead-letters?limit=500")
            letters = answer.json()["letters"]
            assert (len(letters), answer.status) == (10, 200)
            assert 100 < len(letters[0]["headers"]) < 200 and letters[0]["headers"][0] == {"key": "", "value": "a"}
            assert len(answer.body) < 500_000


@pytest.mark.servers
@pytest.mark.attack(
    who="who may write into the table of dead letters",
    does="puts letters there whose headers are none: of other types, no base64, nested a thousand deep",
    gets="those letters without headers, beside the others; to send one again is refused (`letter-unreadable`)",
)
def test_a_letter_of_odd_headers_hides_no_other(postgres_server: Any, tmp_path: Path) -> None:
    name, good = "test_odd_letters", '[{"key": "a", "value": "YQ=="}]'
    odd = (
        '[{"x": 1}]',
        '[{"key": 5, "value": null}]',
        '[{"key": "a", "value": 7}]',
        '{"":' * 1200,
        "[1]",
        '[{"key": "a"',
    )
    with psycopg.connect(postgres_server.url, autocommit=True) as connection, ExitStack() as stack:
        connection.execute(f"CREATE DATABASE {name}")
        stack.callback(connection.execute, f"DROP DATABASE {name} WITH (FORCE)")
        url = plain_url(postgres_server, name)
        with psycopg.connect(url) as there:
            there.execute(f"CREATE TABLE dead ({LETTERS})")
            for offset, headers in enumerate((good, *odd)):
                values = (offset, headers)
                there.execute("INSERT INTO dead VALUES ('orders', 0, %s, now(), '', '', %s, 'r', 'orders', 1)", values)
        dead = PostgresSink(url, "dead")
        graph = SimpleNamespace(letters_of=lambda _: dead)
        definition = whole(tmp_path, dead_letters=(dead,), graph=graph)
        with daemon_of(definition) as ask:
            letters = ask.get("/pipelines/orders/dead-letters")["letters"]
        shown = {letter["place"]["offset"]: letter["headers"] for letter in letters}
        assert shown == {0: [{"key": "a", "value": "a"}], **{offset: [] for offset in range(1, 7)}}
        for offset in range(1, 7):
            with pytest.raises(NotSendable) as refused:
                send_again(definition, RecordPlace("orders", 0, offset))
            assert refused.value.code == "letter-unreadable"
