"""`listen=`: a run in this process, with the daemon's page, API and metrics. On the engine flows run on files; of Spark
there is a stub."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow.compute as pc
import pytest
from harness.daemon_stubs import AT_ONCE, whole
from harness.errors import raises
from harness.own_runs import Folder, Meanwhile, free, is_free

from onefold.core import ConfigError, Fenced, OnefoldError, Retriable
from onefold.core.waiting import Wait
from onefold.core.writing.dead_letters import Tally
from onefold.daemon.api.listening import Server
from onefold.daemon.listen import own_run
from onefold.flow import Flow, count, sum_
from onefold.pipeline import Engine, Restart
from onefold.sinks import SqlSink
from onefold.sources import FileSource


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    for often in ("_STORE_S", "_SOURCE_S", "_SINKS_S"):
        monkeypatch.setattr(f"onefold.daemon.watch.watch.{often}", 0.1)
    monkeypatch.setattr("onefold.daemon.listen.own_run._FLOWING_S", 0.1)
    return Folder(tmp_path)


@pytest.fixture
def threads() -> Iterator[None]:
    """What a run has begun has ended with it."""
    before = set(threading.enumerate())
    yield
    wait = Wait(120)
    while left := [each.name for each in threading.enumerate() if each not in before]:
        assert wait.again(), left


@pytest.mark.usefixtures("threads")
def test_a_flow_that_runs_is_shown_held_and_ended_over_http(folder: Folder) -> None:
    address = free()
    meanwhile = Meanwhile(address)
    folder.add()

    def operate() -> None:
        ask = meanwhile.ask
        meanwhile.until("epoch", 1)
        found = meanwhile.now()
        assert (found["actions"], found["generation"], found["error"]) == (["pause", "stop"], 1, None)
        meanwhile.until("behind", {"file": 0})
        wait = Wait(120)
        while [edge["rows"] for edge in meanwhile.now()["edges"]] != [10, 10]:
            assert wait.again(), meanwhile.now()["edges"]
        assert ask.get("/pipelines/numbers/graph")["svg"]["tag"] == "svg"
        assert b'onefold_edge_rows_total{pipeline="numbers",source="in"' in ask("GET", "/metrics").body
        assert b"<title>" in ask("GET", "/").body
        assert ask("GET", "/pipelines", Authorization="Bearer another").status == 401
        refused = ask.post("/pipelines/numbers/restart")
        assert (refused.status, refused.json()["code"]) == (409, "restart-by-program")
        assert ask.post("/pipelines/numbers/pause").status == 202
        assert meanwhile.now()["state"] == "paused"
        folder.add()
        time.sleep(0.3)
        assert folder.written() == 10
        assert ask.post("/pipelines/numbers/resume").status == 202
        meanwhile.until("epoch", 2)
        meanwhile.stop()

    outcomes: list[object] = []
    progress = meanwhile(operate, lambda: folder.run(folder.flow(), address, on_outcome=outcomes.append))
    assert (progress.epochs, progress.rows, folder.written(), len(outcomes)) == (2, 20, 20, 2)
    assert is_free(address)


@pytest.mark.usefixtures("threads")
def test_a_pipeline_of_the_engine_is_shown_as_a_flow_is(folder: Folder) -> None:
    address = free()
    meanwhile = Meanwhile(address)
    folder.add()

    def look() -> None:
        meanwhile.until("epoch", 1)
        meanwhile.stop()

    meanwhile(look, lambda: folder.pipeline(folder.flow(), Engine()).run(listen=address))
    assert folder.written() == 10 and is_free(address)


@pytest.mark.usefixtures("threads")
def test_a_flow_that_ends_at_once_leaves_nothing_behind(folder: Folder) -> None:
    address = free()
    folder.add()
    for rows in (10, 0):
        assert folder.run(folder.flow(ends=True), address).rows == rows
        assert is_free(address)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("raised", [KeyError("mine"), Fenced("test", "taken over"), Retriable("test", "away")])
def test_what_ends_a_run_is_raised_as_it_is_and_the_port_is_free_again(folder: Folder, raised: Exception) -> None:
    address = free()
    folder.add()

    def fail(_outcome: object) -> None:
        raise raised

    with pytest.raises(type(raised)) as ended:
        folder.run(folder.flow(ends=True), address, on_outcome=fail)
    assert ended.value is raised
    assert is_free(address)


def test_a_function_that_raises_is_named_as_without_it(folder: Folder) -> None:
    folder.add()

    def fails(batch: Any) -> Any:
        if batch.num_rows:
            raise ValueError("not this one")
        return batch

    never = {"restart": Restart(strategy="none")}
    found: list[OnefoldError] = []
    for listen in (None, free()):
        with pytest.raises(OnefoldError) as ended:
            folder.flow(True, fails).run(checkpoint=f"{folder.root}/checkpoint", listen=listen, **never)
        found.append(ended.value)
    said = [(error.code, error.message.partition(" of ")[2]) for error in found]  # of which epoch, both say
    assert said[0] == said[1] and "not this one" in said[0][1]


@pytest.mark.parametrize(
    ("listen", "code"),
    [
        (8080, "listen-elsewhere"),
        ("0.0.0.0:8080", "listen-elsewhere"),
        ("example.com:80", "listen-elsewhere"),
        ("127.0.0.1", "option-value"),
        ("", "option-value"),
        ("127.0.0.1:65536", "option-value"),
    ],
)
def test_an_address_that_is_none_of_this_machine_is_refused_before_anything_runs(
    folder: Folder, listen: Any, code: str
) -> None:
    with raises(ConfigError, code):
        folder.run(folder.flow(), listen)
    with raises(ConfigError, code):
        folder.pipeline(folder.flow(), Engine()).run(listen=listen)
    assert not (folder.root / "checkpoint").exists()


def test_a_second_run_on_one_port_is_refused_and_takes_nothing_over(folder: Folder) -> None:
    address = free()
    meanwhile = Meanwhile(address)

    def second() -> None:
        with raises(ConfigError, "address-not-free"):
            folder.run(folder.flow(), address)
        folder.add()
        meanwhile.until("epoch", 1)
        assert meanwhile.now()["generation"] == 1
        meanwhile.stop()

    meanwhile(second, lambda: folder.run(folder.flow(), address))
    assert folder.written() == 10


def test_its_workers_have_nothing_of_the_api_s(folder: Folder) -> None:
    address = free()
    meanwhile = Meanwhile(address)
    folder.add()
    found: list[list[Any]] = []

    def look() -> None:
        meanwhile.until("epoch", 1)
        own = psutil.Process()
        found.extend(each.net_connections("tcp") for each in (own, *own.children(recursive=True)))
        meanwhile.stop()

    meanwhile(look, lambda: folder.run(folder.flow(), address))
    port = int(address.rpartition(":")[2])
    has = [any(each.laddr.port == port for each in connections) for connections in found]
    driver, *others = has
    assert driver and len(others) >= 2, "the driver, what forks its workers, and the one worker"
    assert not any(others), "nor has what other tests have started"


def test_clients_that_hang_hold_no_end_up(folder: Folder) -> None:
    address = free()
    meanwhile = Meanwhile(address)
    host, _, port = address.partition(":")
    hanging: list[socket.socket] = []

    def hang() -> None:
        ends = (b"", b"GET /pipelines HTTP/1.1\r\n", b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        for said in ends:
            hanging.append(socket.create_connection((host, int(port))))
            hanging[-1].sendall(said)
        meanwhile.stop()

    wait = Wait(120)
    meanwhile(hang, lambda: folder.run(folder.flow(), address))
    assert wait.left_s > 5 and is_free(address)
    for each in hanging:
        each.close()


def test_a_server_that_has_died_ends_no_flow(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_server: Server) -> None:
        raise OSError("no file left")

    monkeypatch.setattr("uvicorn.Server.serve", dies)
    folder.add()
    address = free()
    assert folder.run(folder.flow(ends=True), address).rows == 10
    assert is_free(address)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_its_epoch(folder: Folder, number: signal.Signals) -> None:
    address = free()
    meanwhile = Meanwhile(address)
    folder.add()

    def signalled() -> None:
        meanwhile.until("epoch", 1)
        os.kill(os.getpid(), number)

    assert meanwhile(signalled, lambda: folder.run(folder.flow(), address)).rows == 10
    assert is_free(address)


def test_the_web_s_packages_are_imported_for_it_alone(folder: Folder) -> None:
    """Where one is missing, the extra is named."""
    text = """
import sys
from onefold.core import ConfigError
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import FileSource
root, web = sys.argv[1], ("fastapi", "uvicorn", "pydantic", "prometheus_client")
flow = Flow("numbers")
source = FileSource(f"{root}/in", format="json", schema="id long", settle_s=0)
flow.source(source.bounded(), uid="in").sink(SqlSink(f"sqlite:///{root}/out.db", "numbers"))
flow.run(checkpoint=f"{root}/checkpoint")
assert not [name for name in web if name in sys.modules]
sys.modules["uvicorn"] = None
try:
    flow.run(checkpoint=f"{root}/checkpoint", listen="127.0.0.1:0")
except ConfigError as error:
    print(error.code, "onefold[cli]" in error.message)
"""
    done = subprocess.run([sys.executable, "-c", text, folder.root], capture_output=True, text=True, check=True)
    assert done.stdout == "package-missing True\n"


class Writer:
    """A query of Spark and its writer. Each run ends with the next of `raises`, or by a drain; None is a signal."""

    is_paused = ends = is_closed = drains = False
    waiting_for = started = graph = running = None

    def __init__(self, *raises: Exception | None) -> None:
        self.raises = list(raises)
        self.bad_records = Tally()
        self.over = threading.Event()
        self.starts = 0

    def start(self, *_: object) -> object:
        self.starts += 1
        return object()

    def await_termination(self, _query: object) -> None:
        if not self.raises:
            assert self.over.wait(30)
        elif (raised := self.raises.pop(0)) is not None:
            raise raised
        else:
            self.drains = True

    def drain(self, _query: object, _within_s: float) -> bool:
        self.over.set()
        return True

    def close(self) -> None:
        self.is_closed = True


def on_spark(tmp_path: Path, writer: Writer, restart: Restart = AT_ONCE) -> Any:
    pipeline = whole(
        tmp_path,
        runtime=SimpleNamespace(session_for=lambda *_: nullcontext(None)),
        writer=lambda **_: writer,
        start=writer.start,
    )
    pipeline.restart = restart
    return pipeline


def test_on_spark_a_failure_that_may_pass_is_started_again(tmp_path: Path) -> None:
    address, writer = free(), Writer(Retriable("test", "away"), Retriable("test", "still away"))
    meanwhile = Meanwhile(address, "orders")

    def restarted() -> None:
        meanwhile.until("restarts", 2)
        meanwhile.until("state", "running")
        assert meanwhile.now()["error"] is None
        meanwhile.stop()

    meanwhile(restarted, lambda: own_run.run(on_spark(tmp_path, writer), address))
    assert (writer.starts, writer.is_closed, is_free(address)) == (3, True, True)


def test_on_spark_one_that_waits_says_so_and_ends_with_its_failure_when_it_is_stopped(tmp_path: Path) -> None:
    address, away = free(), Retriable("test", "away")
    meanwhile = Meanwhile(address, "orders")

    def stopped() -> None:
        found = meanwhile.now()
        assert found["error"]["message"] == "away" and found["next_start_at"]
        meanwhile.stop()

    later = Restart(strategy="fixed_delay", delay_s=60)
    with pytest.raises(Retriable) as ended:
        meanwhile(stopped, lambda: own_run.run(on_spark(tmp_path, Writer(away), later), address), once="waiting")
    assert ended.value is away


@pytest.mark.parametrize("raised", [Retriable("jvm-gone", "Spark's JVM is gone"), Fenced("test", "taken over")])
def test_on_spark_what_does_not_pass_is_raised_at_once(tmp_path: Path, raised: Exception) -> None:
    writer = Writer(raised)
    with pytest.raises(type(raised)) as ended:
        own_run.run(on_spark(tmp_path, writer), free())
    assert ended.value is raised and writer.starts == 1


def test_on_spark_a_signal_ends_it_without_an_error(tmp_path: Path) -> None:
    writer = Writer(None)
    own_run.run(on_spark(tmp_path, writer), free())
    assert writer.starts == 1


@pytest.mark.usefixtures("threads")
@pytest.mark.slow
def test_the_state_of_a_pipeline_is_asked_for_over_http_by_who_has_the_token(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.daemon.api.states._BYTES_MAX", 2_000)
    address = free()
    meanwhile = Meanwhile(address)
    folder.add()
    flow = Flow("numbers")
    rows = flow.source(FileSource(f"{folder.root}/in", format="json", schema="id long", settle_s=0), uid="in")
    whole = pc.divide(pc.field("id"), 3)
    totals = rows.select("id", third=pc.subtract(pc.field("id"), pc.multiply(whole, 3))).key_by("third")
    made = totals.aggregate(uid="thirds", queryable=True, total=sum_("id"), rows=count())
    made.map_batches(lambda batch: batch.select(["rows"])).sink(SqlSink(f"sqlite:///{folder.root}/out.db", "counts"))

    def operate() -> None:
        ask, path = meanwhile.ask, "/pipelines/numbers/state"

        def refused(given: str) -> tuple[int, str]:
            answer = ask("GET", f"{path}/{given}")
            return answer.status, answer.json()["code"]

        meanwhile.until("epoch", 1)
        assert ask.get(path) == [{"uid": "thirds", "key": ["third int64"], "states": ["aggregates"]}]
        wait = Wait(120)
        while (found := ask.get(f"{path}/thirds/aggregates?key=[1]&key=[5]"))[0]["epoch"] != 1:
            assert wait.again(), found
        assert [each["rows"] for each in found] == [[{"third": 1, "total": 12, "rows": 3}], []]
        assert (found[0]["view"], found[0]["watermark"]) == ("committed", None)
        (live,) = ask.get(f"{path}/thirds/aggregates?key=[0]&view=live")
        assert (live["view"], live["rows"]) == ("live", [{"third": 0, "total": 18, "rows": 4}])
        stranger = ask("GET", f"{path}/thirds/aggregates?key=[1]", Authorization="Bearer another")
        assert (stranger.status, stranger.json()["code"]) == (401, "token-wrong")
        assert refused("else/aggregates?key=[1]") == (404, "state-not-queryable")
        assert refused("thirds/else?key=[1]") == (404, "state-unknown")
        assert refused("thirds/aggregates?key=one") == (422, "state-key")
        assert refused('thirds/aggregates?key=["one"]') == (422, "state-key")
        assert refused("thirds/aggregates") == (422, "request-invalid")
        assert refused("thirds/aggregates?" + "key=[1]&" * 101) == (422, "request-invalid")
        assert refused("thirds/aggregates?" + "key=[1]&" * 99) == (413, "state-answer-large")
        (job := folder.root / "job.py").write_text(
            "from onefold.flow import Flow\nfrom onefold.pipeline import Engine, Pipeline\n"
            "from onefold.sinks import SqlSink\nfrom onefold.sources import FileSource\n"
            f"flow, root = Flow('numbers'), {str(folder.root)!r}\n"
            "rows = flow.source(FileSource(f'{root}/in', format='json', schema='id long'), uid='in')\n"
            "rows.sink(SqlSink(f'sqlite:///{root}/out.db', 'numbers'))\n"
            "pipeline = Pipeline(flow, runtime=Engine(), checkpoint=f'{root}/checkpoint')\n"
        )

        def said(*words: str) -> subprocess.CompletedProcess[str]:
            command = [
                str(Path(sys.executable).with_name("onefold")),
                "state",
                "get",
                f"{job}:pipeline",
                "thirds",
                *words,
            ]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)

        assert json.loads(said("1", "--json").stdout)["rows"] == [{"third": 1, "total": 12, "rows": 3}]
        assert [part.strip() for part in said("1").stdout.splitlines()[3].split("│")[1:-1]] == ["1", "12", "3", "1"]
        assert said("7").returncode == 1
        later_s = time.monotonic() + 2
        monkeypatch.setattr("onefold.daemon.api.states.time", SimpleNamespace(monotonic=lambda: later_s))
        codes = [ask("GET", f"{path}/thirds/aggregates?key=[1]").status for _ in range(51)]
        assert codes == [*[200] * 50, 429]
        meanwhile.stop()

    pipeline = folder.pipeline(flow, Engine())
    meanwhile(operate, lambda: pipeline.run(listen=address))
