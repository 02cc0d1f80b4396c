"""The API over HTTP: what it tells, whom it answers, what it refuses. Spark is a stub; the store is a real one."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness.daemon_stubs import Asking, HoldingSink, Query, daemon_of, whole
from harness.errors import raises
from harness.stored_epochs import with_epochs

from onefold.core import MOVED, ConfigError, EpochRecord, EpochState, Fenced, Positions, Range, Retriable
from onefold.core.moves import MoveNote
from onefold.core.waiting import Wait
from onefold.daemon.access import proof
from onefold.daemon.access.token import make_own_token
from onefold.daemon.api.blocking_calls import BlockingCalls
from onefold.daemon.api.epochs import EpochModel
from onefold.daemon.api.listening import BoundedConnection, LimitedListener, Listening
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.messages import Finished, LogLine, Totals
from onefold.daemon.watch.poller import Poller
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.store.epoch_figures import Acknowledged, EpochSteps, GaveUp, OperatorAcks, RunningEpoch
from onefold.store.history import StoredEpoch

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Asking]:
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "state", "running")
        yield ask


def until(ask: Asking, name: str, value: object) -> None:
    wait = Wait(120)
    while ask.get("/pipelines/orders")[name] != value:
        assert wait.again(), ask.get("/pipelines/orders")


def test_a_pipeline_is_told_with_its_state_its_positions_and_what_is_allowed(daemon: Asking) -> None:
    until(daemon, "in_doubt", 1)
    until(daemon, "epoch", 3)
    (found,) = daemon.get("/pipelines")
    assert (found["name"], found["actions"]) == ("orders", ["pause", "restart", "stop"])
    assert found["positions"] == {"orders/0": 30}
    assert found["counts"] == {"triggered": 4, "in_progress": 1, "completed": 3, "failed": 0, "restored": 0}
    assert found["oldest_prepared_s"] == 12.0
    assert found["lag"] is None, "the broker is down"
    (sink,) = found["sinks"]
    assert (sink["kind"], sink["promise"], sink["atomic"], sink["reason"]) == (
        "holding",
        "exactly-once",
        False,
        "it rains",
    )
    assert found["latest"]["completed"]["rows"] == 10
    assert (found["latest"]["savepoint"], found["latest"]["savepoint_restored"]) == (None, None)
    assert found["started_at"].endswith("Z")


def test_a_pipeline_says_whether_it_has_sinks_of_dead_letters(tmp_path: Path) -> None:
    url = "postgresql://127.0.0.1:1/nowhere"
    plain, aside = PostgresSink(url, "rows"), PostgresSink(url, "rows", on_error="dead_letter")
    told = []
    for more in ({}, {"sinks": (plain,)}, {"sinks": (plain, aside)}, {"dead_letters": (plain,)}):
        with daemon_of(whole(tmp_path, **more), begins=False) as ask:
            found = ask.get("/pipelines/orders")
            told.append((found["takes_dead_letters"], found["dead_letters"]))
    assert told == [(False, None), (False, None), (True, None), (True, 0)], "rows that are refused are not counted"


def test_restored_counts_starts_and_not_what_else_takes_a_generation(tmp_path: Path) -> None:
    with closing(with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3)) as store:
        store.acquire("orders", above=0)  # as a savepoint does
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "epoch", 3)
        assert ask.get("/pipelines/orders")["counts"]["restored"] == 0


def test_epochs_are_told_the_newest_first_page_by_page_and_one_with_its_manifest(daemon: Asking) -> None:
    first = daemon.get("/pipelines/orders/epochs?limit=2")["epochs"]
    assert [(epoch["epoch"], epoch["state"]) for epoch in first] == [(4, "open"), (3, "complete")]
    rest = daemon.get("/pipelines/orders/epochs?before=3")["epochs"]
    assert [epoch["epoch"] for epoch in rest] == [2, 1]
    one = daemon.get("/pipelines/orders/epochs/2")
    assert one["range"] == {"start": {"orders/0": 10}, "end": {"orders/0": 20}}
    assert [(part["handle"], part["rows"]) for part in one["manifest"]] == [("gid-1", 10)]
    assert one["duration_s"] >= 3.0 and 1.0 <= one["commit_s"] <= 2.0
    (sink,) = one["sinks"]
    assert (sink["name"], sink["state"], sink["acknowledged_at"]) == ("rows", "acknowledged", one["completed_at"])
    (pending,) = first[0]["sinks"]
    assert (pending["state"], pending["acknowledged_at"]) == ("pending", None)


def test_epochs_that_this_daemon_has_seen_finished_have_their_durations_by_step(tmp_path: Path) -> None:
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    steps = {"wait_s": 1.5, "open_s": 0.25, "run_s": 2.0, "prepare_s": 0.125, "decide_s": 0.5, "commit_s": 1.0}
    pipeline = whole(tmp_path)
    with daemon_of(pipeline) as ask:
        until(ask, "epoch", 3)
        (query,) = pipeline.queries
        query.epochs.take(Finished(epoch=number, steps=EpochSteps(**steps)) for number in (3, 4))
        epochs = ask.get("/pipelines/orders/epochs")["epochs"]
        assert [epoch["steps"] for epoch in epochs] == [None, steps, None, None], "the fourth is another's, and open"
        assert ask.get("/pipelines/orders/epochs/3")["steps"] == steps
        assert ask.get("/pipelines/orders")["latest"]["completed"]["steps"] == steps


def acks(*missing: int, state_bytes: int = 0) -> OperatorAcks:
    done = Acknowledged(1_700_000_000.5, 0.25, 10, 0.5, state_bytes, state_bytes // 10, "unaligned", 7)
    return OperatorAcks(("totals", "<b>shop</b>"), tuple(None if at in missing else done for at in range(2)))


def test_the_operators_of_the_last_hundred_epochs_are_told_with_what_they_have_acknowledged(tmp_path: Path) -> None:
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    steps = EpochSteps(wait_s=0, open_s=0, run_s=1, prepare_s=0, decide_s=0, commit_s=0)
    pipeline = whole(tmp_path, checkpoint="s3://key:s3cr3t@bucket/orders")
    with daemon_of(pipeline) as ask:
        until(ask, "epoch", 3)
        (query,) = pipeline.queries
        query.epochs.take([Finished(epoch=3, steps=steps, operators=(acks(1, state_bytes=500),))])
        one = ask.get("/pipelines/orders/epochs/3")
        (operator,) = one["operators"]
        assert operator["names"] == ["totals", "<b>shop</b>"]
        assert operator["subtasks"] == [
            {
                **{"at": "2023-11-14T22:13:20.500000Z", "aligned_s": 0.25, "held_bytes": 10, "prepared_s": 0.5},
                **{"state_bytes": 500, "stored_bytes": 50, "how": "unaligned", "flight_bytes": 7},
            },
            None,
        ]
        assert (one["kind"], one["why"], one["state_bytes"], one["stored_bytes"]) == ("rows", None, 500, 0)
        assert ask.get("/pipelines/orders/epochs/2")["state_bytes"] is None
        assert "s3cr3t" not in ask.get("/pipelines/orders")["checkpoint"]
        query.epochs.take(Finished(epoch=number, steps=steps, operators=(acks(),)) for number in range(4, 103))
        assert ask.get("/pipelines/orders/epochs/3")["operators"] != []
        query.epochs.take([Finished(epoch=103, steps=steps)])
        gone = ask.get("/pipelines/orders/epochs/3")
        assert (gone["operators"], gone["state_bytes"], gone["steps"] is None) == ([], None, False)


def test_the_epoch_that_runs_names_first_the_subtasks_that_work_and_a_run_that_is_given_up_is_a_failure(
    tmp_path: Path,
) -> None:
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    pipeline = whole(tmp_path)
    with daemon_of(pipeline) as ask:
        until(ask, "epoch", 3)
        (query,) = pipeline.queries
        before = ask.get("/pipelines/orders")
        assert before["running"] is None and before["latest"]["failed"] is None
        source = OperatorAcks(("orders",), (None, None))
        query.running = RunningEpoch(5, 1_700_000_000, "run", (source, acks(0)), (None, "<b>shop</b>"))
        query.gave_up = GaveUp(5, 1_700_000_001, "it has <b>ended</b> (worker-lost)")
        query.totals = Totals(given_up=2)
        found = ask.get("/pipelines/orders")
        assert found["running"]["waits_for"] == ["orders in worker 0", "orders in worker 1", "totals in worker 0"]
        query.running = RunningEpoch(5, 1_700_000_000, "run", (source, acks(0)), ("<b>shop</b>", None))
        running = ask.get("/pipelines/orders")["running"]
        assert running["waits_for"][0] == "totals in worker 0, at work in <b>shop</b>"
        assert (running["epoch"], running["since"], running["step"]) == (5, "2023-11-14T22:13:20Z", "run")
        assert found["latest"]["failed"] == {
            **{"epoch": 5, "state": "given_up", "at": "2023-11-14T22:13:21Z"},
            "error": "it has <b>ended</b> (worker-lost)",
        }
        assert found["counts"]["failed"] == before["counts"]["failed"] + 2
        assert found["counts"]["triggered"] == before["counts"]["triggered"] + 2


def test_a_move_says_that_it_is_one_and_why() -> None:
    span, note = Range(Positions(), Positions()), MoveNote("somebody", "savepoint <b>s</b>").to_text()
    record = EpochRecord("p", 7, 1, EpochState.COMPLETE, span, 0, MOVED, -1, note)
    found = EpochModel.of(StoredEpoch(record, 0, None, None, None, None), EpochTimes())
    assert (found.kind, found.why) == ("move", "savepoint <b>s</b>")


def test_a_pipelines_log_and_its_file_without_secrets_are_told(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text('name = "orders"\nstore = "postgresql://shop:s3cr3t@db/shop"\n')
    pipeline = whole(tmp_path, named=file)
    with daemon_of(pipeline) as ask:
        file.unlink()
        lines = ask.get("/pipelines/orders/definition")["lines"]
        assert lines == ['name = "orders"', 'store = "postgresql://db/shop"']
        (query,) = pipeline.queries
        query.lines.append(LogLine(at_s=1_700_000_000, level="warning", message="the server is down"))
        found = ask.get("/pipelines/orders/log")["lines"]
        assert found == [{"at": "2023-11-14T22:13:20Z", "level": "warning", "message": "the server is down"}]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "path-unknown"),
        ("GET", "/pipelines/none", 404, "pipeline-unknown"),
        ("GET", "/pipelines/orders/epochs/99", 404, "epoch-unknown"),
        ("GET", "/pipelines/orders/epochs/0", 422, "request-invalid"),
        ("GET", "/pipelines/orders/epochs?limit=100000", 422, "request-invalid"),
        ("GET", f"/pipelines/orders/epochs?before={2**70}", 422, "request-invalid"),
        ("POST", "/pipelines/none/stop", 404, "pipeline-unknown"),
        ("DELETE", "/pipelines/orders", 405, "method-not-allowed"),
    ],
)
def test_what_is_asked_wrongly_is_answered_with_a_code(
    daemon: Asking, method: str, path: str, status: int, code: str
) -> None:
    answer = daemon(method, path)
    assert (answer.status, answer.json()["code"]) == (status, code)


def test_health_is_that_it_answers_and_ready_that_its_pipelines_run(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path), begins=False) as ask:
        assert ask("GET", "/health").json() == {"status": "ok"}
        answer = ask("GET", "/ready")
        assert (answer.status, answer.json()) == (503, {"is_ready": False, "pipelines": {"orders": "starting"}})
        assert ask.get("/pipelines/orders")["actions"] == ["stop"], "before it is started"
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "state", "running")
        assert ask("GET", "/ready").status == 200
        assert ask.post("/pipelines/orders/pause").json()["state"] == "paused"
        assert ask("GET", "/ready").status == 200
        assert ask.post("/pipelines/orders/stop").status == 202
        until(ask, "state", "stopped")
        assert ask("GET", "/ready").status == 503


def test_a_store_that_hangs_is_a_503_and_nothing_else_waits_for_it(
    daemon: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr("onefold.store.history.History.epochs", lambda *_: over.wait(30))
    monkeypatch.setattr(BlockingCalls, "WITHIN_S", 0.5)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(daemon("GET", "/pipelines/orders/epochs").status))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    began_s = time.monotonic()
    assert daemon("GET", "/health").status == 200
    assert daemon.get("/pipelines/orders")["state"] == "running"
    assert time.monotonic() - began_s < 0.5
    for thread in threads:
        thread.join(10)
    over.set()
    assert answers == [503] * 6


def test_a_store_that_is_down_is_a_503_and_the_pipelines_figures_say_why(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database" * 1000)
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "state", "running")
        answer = ask("GET", "/pipelines/orders/epochs")
        assert (answer.status, answer.json()["code"]) == (503, "database-access-denied")
        found = ask.get("/pipelines/orders")
        assert (found["counts"], found["epoch"], found["store_error"]["code"]) == (None, None, "database-access-denied")
        assert 'onefold_store_up{pipeline="orders"} 0.0' in ask("GET", "/metrics").body.decode()


def test_a_server_that_is_waited_for_is_the_error_of_a_pipeline_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "state", "running")
        assert ask.get("/pipelines/orders")["error"] is None
        monkeypatch.setattr(Query, "waiting_for", Retriable("postgres-unreachable", "no answer"))
        found = ask.get("/pipelines/orders")
        said = {"code": "postgres-unreachable", "message": "no answer", "at": None}
        assert (found["state"], found["error"]) == ("running", said)


def test_a_fenced_pipeline_says_so_and_takes_nothing(tmp_path: Path) -> None:
    pipeline = whole(tmp_path)
    pipeline.host = lambda: Query(Fenced("taken-over", "another process runs it"))
    with daemon_of(pipeline) as ask:
        until(ask, "state", "fenced")
        found = ask.get("/pipelines/orders")
        assert (found["actions"], found["error"]["code"]) == ([], "taken-over")
        answer = ask.post("/pipelines/orders/restart")
        assert (answer.status, answer.json()["code"]) == (409, "pipeline-fenced")
        assert 'onefold_fenced{pipeline="orders"} 1.0' in ask("GET", "/metrics").body.decode()


@pytest.mark.parametrize(
    "given", ["", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9", "Onefold", f"Onefold a b {TOKEN}"]
)
def test_without_the_token_nothing_answers_but_health_and_the_pages_own_files(tmp_path: Path, given: str) -> None:
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        for method, path in (
            *(("GET", path) for path in ("/ready", "/metrics", "/openapi.json", "/docs", "/pipelines", "/health/")),
            *(("GET", path) for path in ("//", "/static", "/Static/index.html")),
            ("POST", "/health"),
            ("POST", "/"),
            ("POST", "/pipelines/orders/stop"),
            ("OPTIONS", "/pipelines"),
        ):
            answer = ask(method, path, Authorization=given)
            assert answer.status == 401, path
            assert answer.headers["WWW-Authenticate"]
        for path in ("/health", "/", "/static/js/app.js"):
            assert ask("GET", path, Authorization=given, Host="any.example").status == 200
        for path in ("/static/../pipelines", "/static/%2e%2e/pipelines", "/static/..%2fpipelines"):
            assert ask("GET", path, Authorization=given).status in (401, 404)


def test_the_pages_key_opens_all_that_the_token_does_until_the_process_ends(tmp_path: Path) -> None:
    def key(ask: Asking) -> str:
        return proof.page_key(TOKEN, ask("GET", "/pipelines", Authorization="").headers[proof.NONCE])

    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        bearer = f"Bearer {key(ask)}"
        assert ask("GET", "/pipelines", Authorization=bearer).status == 200
        assert ask("POST", "/pipelines/none/stop", Authorization=bearer).status == 404
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        assert ask("GET", "/pipelines", Authorization=bearer).status == 401


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"[" * 100_000, 413, "body-too-large"),
        (b"[" * 10_000, 400, "body-unreadable"),
        (b'"\xff"', 400, "body-unreadable"),
        (rb'{"topic": "orders\u0000", "partition": 0, "offset": 0}', 422, "request-invalid"),
    ],
    ids=["large", "deep", "no UTF-8", "no topic's name"],
)
def test_a_body_that_is_no_use_is_refused_and_a_large_one_is_not_kept(
    daemon: Asking, body: bytes, status: int, code: str
) -> None:
    address, path = urlsplit(daemon.url).netloc, "/pipelines/orders/dead-letters/send"
    for sent in (body, iter([body[: len(body) // 2], body[len(body) // 2 :]])):  # the second one does not say its size
        with closing(HTTPConnection(address, timeout=30)) as connection:
            connection.request(
                "POST", path, sent, {"Authorization": f"Bearer {make_own_token()}", "Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["code"]) == (status, code)


def test_connections_on_which_no_request_comes_are_closed_and_do_not_keep_others_out(
    daemon: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedListener, "OPEN_MAX", 20)
    monkeypatch.setattr(BoundedConnection, "REQUEST_WITHIN_S", 0.5)
    at = urlsplit(daemon.url)
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((at.hostname, at.port))) for _ in range(60)]
        began = [b"", b"GET /health HTTP/1.1\r\nHost: 127.", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he"]
        for number, one in enumerate(slow):
            with suppress(OSError):  # it was one too many
                one.sendall(began[number % len(began)])
        wait = Wait(120)
        while not is_healthy(daemon):
            assert wait.again()
        for one in slow:
            one.settimeout(20)
            with suppress(ConnectionError):
                while one.recv(4096):
                    pass


def test_a_strangers_connection_ends_whatever_is_asked_on_it_and_the_owners_stays(
    daemon: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "REQUEST_WITHIN_S", 2.0)
    at = urlsplit(daemon.url)
    with ExitStack() as stack:
        unread = stack.enter_context(socket.socket())
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            unread.setsockopt(socket.SOL_SOCKET, buffer, 4096)
        unread.connect((at.hostname, at.port))
        unread.setblocking(False)
        with suppress(BlockingIOError):  # its answers, which nobody takes, fill all buffers
            while unread.send(b"GET /static/js/app.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100):
                pass
        busy, owner = (stack.enter_context(closing(HTTPConnection(at.netloc, timeout=20))) for _ in range(2))
        bearer = f"Bearer {make_own_token()}"
        assert is_answered(busy, "/health") and is_answered(owner, "/pipelines", bearer)
        busy.auto_open = owner.auto_open = 0  # no other connection in the place of one that has ended
        wait, asked, is_kept = Wait(60, 0.1, 0.1), time.monotonic(), True
        while is_answered(busy, "/health") or is_open(unread):
            is_kept, was_late = is_answered(owner, "/pipelines", bearer), time.monotonic() - asked > 1.0
            assert (is_kept or was_late) and wait.again()
            if not is_kept:  # this machine stood still for so long that the owner, too, asked too late
                owner.connect()
            asked = time.monotonic()
        assert is_kept


def is_answered(on: HTTPConnection, path: str, bearer: str = "Bearer none") -> bool:
    try:
        on.request("GET", path, headers={"Authorization": bearer})
        answer = on.getresponse()
        return bool(answer.read()) and answer.status == 200
    except (ConnectionError, HTTPException):
        return False


def is_open(one: socket.socket) -> bool:
    try:
        one.send(b"GET")
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return True


def is_healthy(ask: Asking) -> bool:
    try:
        return ask("GET", "/health").status == 200
    except (OSError, HTTPException):
        return False


def test_what_a_browser_shows_cannot_be_framed_and_loads_nothing_from_elsewhere(daemon: Asking) -> None:
    for path in ("/health", "/nothing", "/pipelines"):
        said = daemon("GET", path).headers
        assert said["X-Frame-Options"] == "DENY" and "default-src 'self'" in said["Content-Security-Policy"]
        assert said["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in said


def test_the_description_has_every_answer_and_the_token(daemon: Asking) -> None:
    found = daemon.get("/openapi.json")
    assert {scheme["scheme"] for scheme in found["components"]["securitySchemes"].values()} == {"bearer"}
    for path, methods in found["paths"].items():
        for method, said in methods.items():
            assert "401" in said["responses"], (path, method)
            for status, response in said["responses"].items():
                assert response["content"], (path, method, status)


@pytest.mark.parametrize(
    ("address", "more", "code"),
    [
        ("8417", {}, "option-value"),
        ("127.0.0.1:99999", {}, "option-value"),
        ("0.0.0.0:8417", {}, "api-open"),
        ("0.0.0.0:8417", {"token": TOKEN}, "api-open"),
        ("127.0.0.1:8417", {"token": "short"}, "token-unusable"),
        ("127.0.0.1:8417", {"token": "with a space in its middle"}, "token-unusable"),
        ("127.0.0.1:8417", {"token": None}, "file-unreadable"),
        ("127.0.0.1:8417", {"tls_cert": Path("a.pem")}, "options-conflict"),
        ("127.0.0.1:8417", {"tls_cert": Path("a.pem"), "tls_key": Path("b.pem")}, "tls-files-unusable"),
    ],
)
def test_an_address_that_is_open_or_cannot_be_is_refused(
    tmp_path: Path, address: str, more: dict[str, object], code: str
) -> None:
    file = tmp_path / "token"
    if "token" in more:
        token = more.pop("token")
        if token is not None:
            file.write_text(f"{token}\n")
        more["token_file"] = file
    with pytest.raises(ConfigError) as raised:
        Listening.of(address, **more)  # type: ignore[arg-type]
    assert raised.value.code == code
    assert TOKEN not in str(raised.value)


def test_an_address_for_others_is_taken_with_a_token_and_where_something_else_encrypts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    found = Listening.of("0.0.0.0:0", tmp_path / "token", insecure=True)
    assert (found.host, found.token) == ("0.0.0.0", TOKEN)
    assert TOKEN not in repr(found)
    for address in ("localhost:0", "[::1]:8417", "127.0.0.5:0"):
        assert Listening.of(address).token == make_own_token()


def test_a_port_that_is_taken_is_one_clear_error(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path)) as ask:
        port = int(ask.url.rpartition(":")[2])
        with raises(ConfigError, "address-not-free") as raised:
            Listening("127.0.0.1", port, TOKEN).bind()
        assert raised.value.code == "address-not-free"


def test_a_look_that_fails_in_any_way_ends_nothing_and_an_old_answer_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[object] = [1, ZeroDivisionError("a defect"), ConfigError("test", "no"), 2]

    def ask() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    look = Poller("it", ask, 60)
    seen = []
    for _ in range(4):
        look.look()
        seen.append((look.value, look.error and look.error.code))
    assert seen == [(1, None), (None, None), (None, "test"), (2, None)]
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.setattr("onefold.daemon.watch.poller._FRESH_S", -1.0)
    monkeypatch.setattr("onefold.daemon.watch.poller._STALE_LOOKS", -1.0)
    assert (look.value, look.has_answer) == (None, False)


def test_a_source_that_is_away_is_the_error_of_a_pipeline_that_runs_and_it_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> object:
        raise Retriable("kafka-unreachable", "no broker answers")

    monkeypatch.setattr("onefold.sources.kafka.planning.lag.lag", away)
    monkeypatch.setattr("onefold.daemon.watch.watch._SOURCE_S", 0.1)
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "error", {"code": "kafka-unreachable", "message": "no broker answers", "at": None})
        assert ask.get("/pipelines/orders")["state"] == "running"
        assert ask("GET", "/ready").status == 503
        monkeypatch.setattr("onefold.sources.kafka.planning.lag.lag", lambda *_: ())
        until(ask, "error", None)
        assert ask("GET", "/ready").status == 200


def test_a_source_is_asked_within_seconds_however_patient_its_pipeline_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        "onefold.sources.kafka.planning.lag.lag", lambda _source, _at, broker: asked.append(broker.timeout_s)
    )
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    source = KafkaSource("orders", bootstrap_servers="127.0.0.1:1", format="raw", timeout_s=60)
    with daemon_of(whole(tmp_path, topics=[source])) as ask:
        until(ask, "epoch", 3)
        wait = Wait(120)
        while not asked:
            assert wait.again()
    assert asked[0] == 5.0


def test_what_was_prepared_before_a_stop_is_not_told_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "in_doubt", 1)
        monkeypatch.setattr(HoldingSink, "held", lambda *_: [])
        assert ask.post("/pipelines/orders/stop").status == 202
        until(ask, "state", "stopped")
        assert ask.get("/pipelines/orders")["in_doubt"] in (None, 0)
        until(ask, "in_doubt", 0)  # long before the sinks would be asked again
