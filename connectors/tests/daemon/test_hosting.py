"""What a host does as its daemon orders, and what it reports. The queries are stubs, the engine is a real one."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.core import ConfigError, Fenced, OnefoldError, Retriable, Terminal
from onefold.core.errors import InternalError
from onefold.core.protocol.epoch import Started
from onefold.core.waiting import Wait
from onefold.core.writing.dead_letters import Tally
from onefold.daemon.hosting import process
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.hosts import Hosted
from onefold.daemon.hosting.identity import identity
from onefold.daemon.hosting.log_tail import LogTail
from onefold.daemon.hosting.messages import Channel, Do, Order, Recovered, Report, Status, Totals
from onefold.daemon.hosting.process import DriverProcess
from onefold.daemon.hosting.traffic_rates import TrafficRates
from onefold.daemon.hosting.works import EngineWork, SparkWork
from onefold.pipeline import Pipeline, Spark
from onefold.store.epoch_figures import RunningEpoch

SPARK: Any = SimpleNamespace(_sc=None)  # nobody asks it anything
GONE = Retriable("jvm-gone", "Spark's JVM does not answer any more")


class Query:
    """A query and its writer. It runs until it is drained, or `over` is set; `raises` is what its run ends with."""

    is_paused = ends = is_closed = drains = False
    waiting_for: OnefoldError | None = None
    running: RunningEpoch | None = None
    started: Started | None = None
    graph: Any = None
    traffic = ()

    def __init__(self, raises: Exception | None = None, closing: Exception | None = None) -> None:
        self.raises, self.closing = raises, closing
        self.bad_records = Tally()
        self.over = threading.Event()
        self.starts = 0

    def await_termination(self, _query: object) -> None:
        if self.raises is None:
            assert self.over.wait(30)
        else:
            raise self.raises

    def drain(self, _query: object, _within_s: float) -> bool:
        self.over.set()
        return True

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True
        if self.closing is not None:
            raise self.closing


class Daemon:
    """A host in a thread of this process, and its daemon's end. Its pipelines are these queries, by their names."""

    def __init__(self, queries: dict[str, Query], spark: Any, start: Callable[[], None]) -> None:
        self.sockets = socket.socketpair()
        self.channel = Channel(self.sockets[0], Report)
        self.host = DriverProcess(self.sockets[1], "orders", LogTail(["orders"]))
        self.reports: list[Report] = []
        self.queries, self._spark, self._start = queries, spark, start
        self.thread = threading.Thread(target=self.host.run, daemon=True)
        self.thread.start()

    def read(self, named: str) -> Any:
        query = self.queries[named]

        def started(*_: object) -> object:
            self._start()
            query.starts += 1
            return object()

        return SimpleNamespace(
            name=named,
            runtime=Spark(),
            checkpoint="",
            store_url="",
            everyone=(),
            flow=SimpleNamespace(sources=lambda: ()),
            spark=SimpleNamespace(session_for=self.session),
            stop_within_s=5.0,
            writer=lambda **_: query,
            start=started,
        )

    def session(self, *_: object) -> AbstractContextManager[Any]:
        if isinstance(self._spark, Exception):
            raise self._spark
        return nullcontext(self._spark)

    def order(self, do: Do, name: str = "orders", work: int = 1, **more: Any) -> None:
        self.channel.send(Order(do=do, work=work, pipeline=name, name=name, **more))

    def until(self, is_so: Callable[[Report], bool]) -> Report:
        """The first report that is so."""
        wait = Wait(120)
        while True:
            for report in self.reports:
                if is_so(report):
                    return report
            assert wait.again()
            self.reports += self.channel.receive(0.1) or []

    def ended(self, work: int = 1) -> Report:
        return self.until(lambda report: report.work == work and report.has_ended)


@pytest.fixture
def daemon_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(spark: Any = SPARK, start: Callable[[], None] = lambda: None, **queries: Query) -> Daemon:
        made.append(Daemon(queries, spark, start))
        monkeypatch.setattr(process, "read", made[-1].read)
        return made[-1]

    yield make
    for each in made:
        each.channel.close()
        for query in each.queries.values():
            query.over.set()
        each.thread.join(10)
        assert not each.thread.is_alive()
        for end in each.sockets:
            end.close()


def is_running(report: Report) -> bool:
    return report.status.started_at_s is not None


def test_a_pipeline_is_run_paused_and_ended(daemon_of: Callable[..., Daemon]) -> None:
    daemon = daemon_of(orders=(query := Query()))
    daemon.order("start", is_paused=True)
    daemon.until(is_running)
    assert query.is_paused
    daemon.order("resume")
    query.bad_records.dead_letters = 2
    assert daemon.until(lambda report: report.status.totals.dead_letters == 2).failure is None
    assert not query.is_paused
    daemon.order("drain")
    report = daemon.ended()
    assert (report.failure, report.is_last, query.is_closed) == (None, False, True)


def test_one_that_fails_hurts_no_other_and_is_started_again_with_the_same_writer(
    daemon_of: Callable[..., Daemon],
) -> None:
    daemon = daemon_of(orders=(failing := Query(Terminal("test", "wrong"))), returns=(other := Query()))
    daemon.order("start", "returns", 2)
    daemon.order("start")
    failure = daemon.ended().failure
    assert failure is not None and (failure.kind, failure.code) == ("Terminal", "test")
    daemon.reports.clear()
    failing.raises = None
    daemon.order("start")
    daemon.until(is_running)
    assert (failing.starts, failing.is_closed, other.over.is_set()) == (2, False, False)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("f() takes 0"), AssertionError("bug"), OverflowError()])
def test_an_error_of_pythons_own_is_a_defect_and_its_traceback_is_logged(
    daemon_of: Callable[..., Daemon], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = daemon_of(orders=Query(error))
    daemon.order("start")
    failure = daemon.ended().failure
    assert failure is not None and (failure.kind, failure.code) == ("InternalError", "unexpected-error")
    assert type(error).__name__ in failure.message
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)


@pytest.mark.parametrize(
    ("error", "spark"),
    [(GONE, SPARK), (Retriable("test", "down"), SimpleNamespace(_sc=SimpleNamespace(_jsc=None)))],
    ids=["jvm-gone", "context-stopped"],
)
def test_a_host_without_its_spark_ends(daemon_of: Callable[..., Daemon], error: OnefoldError, spark: Any) -> None:
    daemon = daemon_of(spark, orders=Query(error))
    daemon.order("start")
    report = daemon.ended()
    assert report.is_last and report.failure is not None and report.failure.code == error.code
    daemon.thread.join(10)
    assert not daemon.thread.is_alive()


@pytest.mark.parametrize("error", [None, Terminal("query-stopped", "in the middle of epoch 3")])
def test_an_endless_query_that_something_else_has_stopped_may_start_again(
    daemon_of: Callable[..., Daemon], error: Exception | None
) -> None:
    query = Query(error)
    query.over.set()
    daemon = daemon_of(orders=query)
    daemon.order("start")
    failure = daemon.ended().failure
    assert failure is not None and (failure.kind, failure.code) == ("Retriable", "query-ended")


def test_one_whose_query_ends_by_itself_has_finished_then(daemon_of: Callable[..., Daemon]) -> None:
    query = Query()
    query.ends = True
    query.over.set()
    daemon = daemon_of(orders=query)
    daemon.order("start")
    assert daemon.ended().failure is None


def test_an_error_while_it_is_closed_is_the_end(daemon_of: Callable[..., Daemon]) -> None:
    query = Query(closing=InternalError("test", "a check failed"))
    daemon = daemon_of(orders=query)
    daemon.order("start")
    daemon.until(is_running)
    daemon.order("drain")
    failure = daemon.ended().failure
    assert failure is not None and failure.kind == "InternalError"


def test_an_error_while_it_is_closed_does_not_hide_that_it_was_fenced(
    daemon_of: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(Fenced("test", "taken over"), closing=InternalError("test", "a check failed"))
    daemon = daemon_of(orders=query)
    daemon.order("start")
    failure = daemon.ended().failure
    assert failure is not None and failure.kind == "Fenced"
    daemon.order("close")
    wait = Wait(120)
    while "a check failed" not in caplog.text:
        assert wait.again()


@pytest.mark.parametrize("is_early", [False, True], ids=["while-it-starts", "before-it-is-made"])
def test_a_drain_that_comes_before_it_runs_is_obeyed(daemon_of: Callable[..., Daemon], is_early: bool) -> None:
    go = threading.Event()
    daemon = daemon_of(orders=(query := Query()), start=lambda: assert_true(go.wait(10)))
    if is_early:
        daemon.order("drain")
    daemon.order("start")
    if not is_early:
        time.sleep(0.1)
        daemon.order("drain")
        time.sleep(0.1)
    go.set()
    assert daemon.ended().failure is None
    assert query.starts == (not is_early)


def assert_true(found: bool) -> None:
    assert found


def test_a_stop_whose_jvm_got_the_same_signal_ends_as_the_jvms_end_says(daemon_of: Callable[..., Daemon]) -> None:
    class Gone(Query):
        def drain(self, _query: object, _within_s: float) -> bool:
            self.raises = GONE
            self.over.set()
            raise GONE

        def await_termination(self, _query: object) -> None:
            assert self.over.wait(10)
            raise GONE

    daemon = daemon_of(orders=Gone())
    daemon.order("start")
    daemon.until(is_running)
    daemon.order("drain")
    failure = daemon.ended().failure
    assert failure is not None and failure.code == "jvm-gone"


@pytest.mark.parametrize(("goes_on", "kind"), [(False, "ConfigError"), (True, "Retriable")])
def test_a_spark_that_does_not_start_may_pass_where_it_did_before(
    daemon_of: Callable[..., Daemon], goes_on: bool, kind: str
) -> None:
    daemon = daemon_of(ConfigError("spark-not-started", "Spark has ended"), orders=Query())
    daemon.order("start", goes_on=goes_on)
    failure = daemon.ended().failure
    assert failure is not None and (failure.kind, failure.code) == (kind, "spark-not-started")


@pytest.mark.parametrize("part", ["name", "runtime", "checkpoint", "store", "sources", "sinks"])
def test_a_file_that_says_something_else_than_the_daemon_shows_is_refused(
    daemon_of: Callable[..., Daemon], part: str
) -> None:
    daemon = daemon_of(orders=(query := Query()))
    parts = identity(daemon.read("orders"))
    daemon.order("start", parts={**parts, part: "another"})
    failure = daemon.ended().failure
    assert failure is not None and (failure.kind, failure.code) == ("ConfigError", "pipeline-changed")
    assert f"another {part} than" in failure.message and query.starts == 0
    daemon.order("start", work=2, parts=parts)
    daemon.until(is_running)


def test_a_host_whose_daemon_is_gone_ends_after_the_epochs_that_are_run(daemon_of: Callable[..., Daemon]) -> None:
    daemon = daemon_of(orders=(query := Query()))
    daemon.order("start")
    daemon.until(is_running)
    daemon.channel.close()
    daemon.thread.join(10)
    assert not daemon.thread.is_alive() and query.is_closed


def test_one_that_a_signal_ended_is_not_taken_for_finished(daemon_of: Callable[..., Daemon]) -> None:
    daemon = daemon_of(orders=Query())
    daemon.order("start")
    daemon.until(is_running)
    daemon.host.end()
    failure = daemon.ended().failure
    assert failure is not None and (failure.kind, failure.code) == ("Retriable", "host-stopped")


def test_a_function_that_ends_its_thread_ends_the_run_and_hurts_no_other(daemon_of: Callable[..., Daemon]) -> None:
    daemon = daemon_of(orders=Query(SystemExit(3)), returns=(other := Query()))  # type: ignore[arg-type]
    daemon.order("start", "returns", 2)
    daemon.order("start")
    failure = daemon.ended().failure
    assert failure is not None and "SystemExit: 3" in failure.message
    assert not other.over.is_set()


def test_a_signals_handler_waits_for_no_lock(daemon_of: Callable[..., Daemon]) -> None:
    daemon = daemon_of(orders=Query())
    daemon.order("start")
    daemon.until(is_running)
    (work,) = daemon.host._works.values()
    assert isinstance(work, SparkWork)
    with work._changing:
        handling = threading.Thread(target=daemon.host.end, daemon=True)
        handling.start()
        handling.join(60)
        assert not handling.is_alive()


def test_a_pause_that_comes_while_the_flow_is_opened_is_not_lost() -> None:
    class Flow:
        was_set = threading.Event()

        def __setattr__(self, name: str, value: object) -> None:
            self.__dict__[name] = value
            self.was_set.set()
            time.sleep(0.3)

    work = EngineWork(SimpleNamespace(), is_paused=False)  # type: ignore[arg-type]
    opening = threading.Thread(target=work._opened, args=(flow := Flow(),))
    opening.start()
    assert flow.was_set.wait(60)
    work.hold(True)
    opening.join(60)
    assert flow.__dict__["is_paused"]


def test_a_files_name_that_is_no_utf_8_reaches_the_host() -> None:
    here, there = socket.socketpair()
    with here, there:
        order = Order(do="start", work=1, pipeline=os.fsdecode(b"/srv/\xff/orders.toml"), name="orders")
        Channel(here, Report).send(order)
        assert Channel(there, Order).receive() == [order]


def test_a_channel_of_a_process_with_many_open_files_is_heard() -> None:
    number = 1500
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], number + 1), limits[1]))
    here, there = socket.socketpair()
    try:
        with here, there, socket.socket(fileno=fcntl.fcntl(there, fcntl.F_DUPFD_CLOEXEC, number)) as far:
            Channel(here, Report).send(order := Order(do="pause", work=1))
            assert Channel(far, Order).receive(5) == [order]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Hosting:
    """The daemon's side without a process: `of` gives a host, to which `start` says what is run."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.traffic: dict[str, TrafficRates] = {}
        self.epochs: dict[str, EpochTimes] = {}
        self.tail = LogTail()

    def of(self, _pipeline: Pipeline) -> Hosting:
        return self

    def start(self, _hosted: Hosted, _order: Order) -> None:
        self.started.release()


@contextmanager
def running(hosted: Hosted, on_start: Callable[[], None]) -> Iterator[None]:
    """One run of it, which ends with the block."""

    def run() -> None:
        with suppress(Retriable):
            hosted.run(on_start, False)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert hosted._hosts.started.acquire(timeout=60)  # type: ignore[attr-defined]
    yield
    hosted.lost(Retriable("test", "down"))
    thread.join(5)


def test_what_is_said_of_the_run_before_is_not_taken_for_a_start_and_hides_no_generation() -> None:
    pipeline: Any = SimpleNamespace(
        name="orders",
        named="orders.toml",
        runtime=Spark(),
        checkpoint="",
        store_url="",
        everyone=(),
        flow=SimpleNamespace(sources=lambda: ()),
    )
    hosted = Hosted(pipeline, hosting := Hosting())  # type: ignore[arg-type]
    starts: list[float] = []
    found = Recovered(generation=1, finished=0)
    status = Status(started_at_s=1.0, recovered=found, totals=Totals(replays=2))
    with running(hosted, lambda: starts.append(1.0)):
        hosted.report(Report(work=1, status=status))
    with running(hosted, lambda: starts.append(2.0)):
        hosted.report(Report(work=1, status=status))
        assert starts == [1.0]
        hosted.report(Report(work=1, status=Status(started_at_s=2.0)))
        assert starts == [1.0, 2.0]
    hosted._hosts = another = Hosting()  # type: ignore[assignment]
    assert another is not hosting
    hosted.report(Report(work=1, status=status))
    with running(hosted, lambda: starts.append(3.0)):
        hosted.report(Report(work=1))
        assert (starts, hosted.status.recovered, hosted.totals.replays) == ([1.0, 2.0], found, 2)
