"""The commands that operate a daemon: what they print, ask and end with. Spark is a stub."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from harness.certificates import self_signed
from harness.daemon_stubs import Asking, Query, daemon_of, whole
from harness.stored_epochs import with_epochs
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError, OnefoldError, Retriable
from onefold.core.waiting import Wait
from onefold.daemon.access.token import make_own_token, own_token_file
from onefold.daemon.api.listening import Listening
from onefold.daemon.hosting.messages import Finished
from onefold.store.epoch_figures import EpochSteps
from onefold.store.savepoint_notes import MADE, RESTORED, note_savepoint

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Asking]:
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    with daemon_of(whole(tmp_path), whole(tmp_path, "returns")) as ask:
        wait = Wait(120)
        while any(one["state"] != "running" or one["in_doubt"] is None for one in ask.get("/pipelines")):
            assert wait.again()
        yield ask


def said(*words: str) -> str:
    """What a command prints. Raises what it ends with."""
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def refused(*words: str) -> OnefoldError:
    with pytest.raises(OnefoldError) as raised:
        said(*words)
    return raised.value


def test_status_shows_all_and_epochs_those_of_one(daemon: Asking) -> None:
    at = ("--url", daemon.url)
    header, orders, returns = said("status", *at).splitlines()
    assert header.split()[:4] == ["pipeline", "state", "generation", "epoch"]
    assert orders.split()[:2] == ["orders", "running"] and returns.split()[:2] == ["returns", "running"]
    assert [one["name"] for one in json.loads(said("status", "returns", "--json", *at))] == ["returns"]
    _, *lines = said("epochs", "orders", "--limit", "2", *at).splitlines()
    assert [line.split()[:2] for line in lines] == [["4", "open"], ["3", "complete"]]
    assert said("epochs", "returns", *at) == "no epochs yet\n"


def test_epochs_say_which_step_took_the_most_of_their_time(tmp_path: Path) -> None:
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    pipeline = whole(tmp_path)
    with daemon_of(pipeline) as ask:
        steps = EpochSteps(wait_s=60, open_s=0.01, run_s=2.04, prepare_s=None, decide_s=0.5, commit_s=1)
        pipeline.queries[0].epochs.take([Finished(epoch=3, steps=steps)])
        _, *lines = said("epochs", "orders", "--limit", "3", "--url", ask.url).splitlines()
    assert ["run 2.0 s" in line for line in lines] == [False, True, False]


def test_status_tells_the_savepoints_that_were_last_made_and_last_restored(tmp_path: Path) -> None:
    with closing(with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3)) as store:
        generation = store.acquire("orders", above=0)
        note_savepoint(store, generation.pipeline, "before-upgrade", 3, MADE)
        note_savepoint(store, generation.pipeline, "monday", 1, RESTORED)
    with daemon_of(whole(tmp_path)) as ask:
        wait = Wait(120)
        while (savepoint := ask.get("/pipelines/orders")["latest"]["savepoint"]) is None:
            assert wait.again()
        assert (savepoint["name"], savepoint["epoch"]) == ("before-upgrade", 3)
        lines = said("status", "--url", ask.url).splitlines()
        made, restored = (line.split(" 20")[0] for line in lines[2:])  # when
        assert made == "orders: savepoint before-upgrade, of epoch 3, was made"
        assert restored == "orders: savepoint monday, of epoch 1, was restored"


def test_a_file_or_an_object_names_its_pipeline(
    daemon: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_URL", daemon.url)
    file = tmp_path / "returns.toml"
    file.write_text(
        'name = "returns"\n[[sources]]\nkind = "kafka"\ntopics = "t"\nbootstrap_servers = "h:1"\nformat = "raw"\n'
        '[[sinks]]\nkind = "sql"\nurl = "sqlite:////tmp/never-made.db"\ntable = "t"\n'
    )
    assert said("pause", str(file)) == "returns: paused\n"
    assert [one["state"] for one in daemon.get("/pipelines")] == ["running", "paused"]


def test_what_changes_something_wants_names_where_there_are_several(daemon: Asking) -> None:
    at = ("--url", daemon.url)
    for action in ("pause", "resume", "stop", "restart", "epochs"):
        error = refused(action, *at)
        assert (error.code, "orders, returns" in error.message) == ("option-missing", True)
    assert said("stop", "orders", "returns", *at).endswith("orders: stopped\nreturns: stopped\n")
    assert said("restart", "orders", *at).endswith("orders: running\n")
    error = refused("restart", "nothing", *at)
    assert (type(error), error.code) == (ConfigError, "pipeline-unknown")
    error = refused("resume", "returns", *at)
    assert (type(error), error.code) == (ConfigError, "action-not-allowed")
    for action, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        for _ in range(2):
            assert said(action, "orders", *at).splitlines()[-1] == f"orders: {state}", "a second time, too"


def test_a_restart_that_fails_is_no_success_and_one_that_waits_for_a_server_is_none_yet(
    daemon: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    raises: list[OnefoldError] = [Retriable("test", "the server is down")]

    def wait(_query: Query) -> None:
        raise raises[0]

    monkeypatch.setattr(Query, "wait", wait)
    assert refused("restart", "orders", "--within", "1", "--url", daemon.url).code == "pipeline-not-there-yet"
    raises[0] = ConfigError("test", "wrong")
    ended = CliRunner().invoke(app, ["restart", "returns", "--url", daemon.url])
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (1, "returns: failed")


def test_a_stop_that_takes_longer_than_somebody_waits_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def drain(query: Query) -> None:
        threading.Thread(target=lambda: go.wait(30) and query.over.set()).start()

    monkeypatch.setattr(Query, "drain", drain)
    with daemon_of(whole(tmp_path)) as ask:
        wait = Wait(120)
        while ask.get("/pipelines/orders")["state"] != "running":
            assert wait.again()
        error = refused("stop", "--within", "0.2", "--url", ask.url)
        assert (type(error), error.code) == (Retriable, "pipeline-not-there-yet")
        go.set()
        while ask.get("/pipelines/orders")["state"] != "stopped":
            assert wait.again()


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ("stop", "restart", "orders: running, as somebody asked meanwhile"),
        ("restart", "stop", "orders: stopped, as somebody asked meanwhile"),
    ],
)
def test_what_somebody_else_takes_back_is_no_longer_waited_for_and_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, answer: str
) -> None:
    has_begun, go = threading.Event(), threading.Event()

    def drain(query: Query) -> None:
        has_begun.set()
        threading.Thread(target=lambda: go.wait(30) and query.over.set()).start()

    monkeypatch.setattr(Query, "drain", drain)
    with daemon_of(whole(tmp_path)) as ask:
        wait = Wait(120)
        while ask.get("/pipelines/orders")["state"] != "running":
            assert wait.again()

        def take_back() -> None:
            assert has_begun.wait(20)
            assert ask.post(f"/pipelines/orders/{second}").status == 202
            go.set()

        other = threading.Thread(target=take_back)
        other.start()
        ended = CliRunner().invoke(app, [first, "--within", "20", "--url", ask.url])
        other.join(20)
        assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (1, answer)


def test_the_token_of_a_file_or_this_users_own_is_proven_and_a_wrong_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "right").write_text(f"{TOKEN}\n")
    (tmp_path / "wrong").write_text("another-token-that-is-long\n")
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        assert "orders" in said("status", "--url", ask.url, "--token-file", str(tmp_path / "right"))
        assert refused("status", "--url", ask.url, "--token-file", str(tmp_path / "wrong")).code == "token-wrong"
        make_own_token()
        assert refused("status", "--url", ask.url).code == "token-wrong"
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        assert refused("status", "--url", ask.url).code == "token-missing"
        monkeypatch.setattr("onefold.daemon.client.own_token_file", no_home)
        assert refused("status", "--url", ask.url).code == "token-missing"
        assert "orders" in said("status", "--url", ask.url, "--token-file", str(tmp_path / "right"))
        monkeypatch.setattr("onefold.daemon.client.own_token_file", own_token_file)
        (tmp_path / "state/onefold").mkdir(0o700, parents=True)
        (tmp_path / "right").rename(own_token_file())
        own_token_file().chmod(0o640)
        assert refused("status", "--url", ask.url).code == "token-exposed"
        own_token_file().chmod(0o600)
        assert "orders" in said("status", "--url", ask.url)


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_link_to_the_page_has_its_key_and_not_the_token(daemon: Asking) -> None:
    link = said("page", "--url", daemon.url).strip()
    url, _, key = link.partition("/#key=")
    assert (url, key == make_own_token()) == (daemon.url, False)
    assert daemon("GET", "/pipelines", Authorization=f"Bearer {key}").status == 200


def test_over_the_network_it_is_asked_by_tls_alone_or_at_somebodys_word(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        token, elsewhere = ("--token-file", str(tmp_path / "token")), ask.url.replace("127.0.0.1", "0.0.0.0")
        for command in (["status"], ["page"], ["epochs", "orders"], ["pause"], ["resume"], ["stop"], ["restart"]):
            error = refused(*command, "--url", elsewhere, *token)
            assert (type(error), error.code) == (ConfigError, "token-in-clear")
        assert "orders" in said("status", "--url", elsewhere, "--insecure", *token)
        assert "orders" in said("status", "--url", ask.url.replace("127.0.0.1", "localhost"), *token)
    error = refused("status", "--url", ask.url.replace("http", "https"), *token)
    assert "begins with" not in error.message, "nobody listens any more"


def test_a_daemon_without_tls_that_is_asked_by_https_is_hinted_at(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path)) as ask:
        error = refused("status", "--url", ask.url.replace("http", "https"))
        assert (error.code, "begins with http://" in error.message) == ("daemon-unreachable", True)


def test_over_tls_the_daemons_certificate_has_to_be_one_that_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    certificate = self_signed(tmp_path, "api", "orders")
    listening = Listening.of("127.0.0.1:0", tmp_path / "token", certificate, certificate.with_suffix(".key"))
    with daemon_of(whole(tmp_path), listening=listening) as ask:
        assert ask.url.startswith("https://")
        at = ("--url", ask.url, "--token-file", str(tmp_path / "token"))
        assert "orders" in said("status", "--ca", str(certificate), *at)
        error = refused("status", *at)
        assert (type(error), error.code) == (ConfigError, "daemon-not-trusted")
        assert refused("status", "--ca", str(tmp_path / "token"), *at).code == "file-unreadable"
        error = refused("status", "--url", ask.url.replace("https", "http"))
        assert (error.code, "begins with https://" in error.message) == ("daemon-unreachable", True)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("nonce", [None, "a nonce of nobody's"])
def test_another_programs_answer_is_not_taken_for_a_daemons_and_not_shown(status: int, nonce: str | None) -> None:
    body = b'[{"name": "orders", "state": "running"}, {"code": "x", "message": "\x1b[31mlooks fine"}]'

    def something_else(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if nonce is not None:
            handler.send_header("X-Onefold-Nonce", nonce)
            handler.send_header("X-Onefold-Proof", "0" * 64)
        handler.end_headers()
        handler.wfile.write(body)

    make_own_token()
    with answering(something_else) as url:
        for command in (["status"], ["status", "orders"], ["epochs", "orders"], ["stop"], ["page"]):
            error = refused(*command, "--url", url)
            assert error.code == ("daemon-answer-unreadable" if nonce is None else "token-wrong")
            assert "fine" not in error.message


def test_an_answer_without_an_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.daemon.client._ANSWER_BYTES_MAX", 1 << 20)
    sent = 0

    def without_end(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(1000):
                sent += handler.wfile.write(b" " * (1 << 20))

    with answering(without_end) as url:
        assert refused("status", "--url", url).code == "daemon-unreachable"
    assert sent < 100 << 20


def test_what_is_no_daemon_is_told_apart_from_none() -> None:

    def nothing(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.close()

    with answering(nothing) as url:
        assert refused("status", "--url", url).code == "daemon-unreachable"
    assert refused("status", "--url", url).code == "daemon-unreachable"
    for url in (
        "8417",
        "ftp://h",
        "http://me:secret@h",
        "http://h:x",
        "http://",
        "http://[::1",
        "http://ä..b",
        "http://h/ä",
    ):
        error = refused("status", "--url", url)
        assert (error.code, "secret" in error.message) == ("option-value", False)
