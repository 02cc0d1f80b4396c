"""Hosts as processes of their own, which run a flow of files on the engine: killed, signalled, started again."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onefold.core import Retriable
from onefold.core.waiting import Wait
from onefold.daemon.hosting.hosts import Hosted, Hosts
from onefold.daemon.hosting.messages import Report
from onefold.daemon.pipeline_run import Run, RunState
from onefold.pipeline import Pipeline, Restart, read

FILE = """\
name = "orders"
runtime = "engine"
[[sources]]
kind = "files"
path = "{place}/in"
format = "json"
schema = "id long"
settle_s = 0.01
[[sinks]]
kind = "sql"
url = "sqlite:///{place}/out.db"
table = "rows"
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "in").mkdir()
    (tmp_path / "orders.toml").write_text(FILE.format(place=tmp_path))
    put(tmp_path, 3)
    return read(str(tmp_path / "orders.toml"))


def put(place: Path, count: int) -> None:
    name = f"{time.monotonic_ns()}.json"
    (place / name).write_text("".join(json.dumps({"id": number}) + "\n" for number in range(count)))
    (place / name).rename(place / "in" / name)


def written(pipeline: Pipeline) -> int:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(Path(pipeline.directory) / "out.db")) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def until(is_so: Callable[[], bool]) -> None:
    wait = Wait(120)
    while not is_so():
        assert wait.again()


@contextmanager
def hosts_of(pipeline: Pipeline) -> Iterator[Hosts]:
    hosts = Hosts([pipeline], "text")
    try:
        yield hosts
    finally:
        hosts.close()


def host_of(hosts: Hosts) -> int:
    (host,) = hosts._hosts.values()
    return host.pid


def test_a_flow_on_the_engine_is_run_paused_killed_started_again_and_ended(pipeline: Pipeline) -> None:
    place = Path(pipeline.directory)
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosted := hosts(pipeline))
        assert isinstance(hosted, Hosted)
        run.start()
        until(lambda: run.state is RunState.RUNNING and written(pipeline) == 3)
        run.pause()
        time.sleep(0.5)  # the order reaches it
        put(place, 4)
        time.sleep(0.5)
        assert (run.state, written(pipeline)) == (RunState.PAUSED, 3)
        os.kill(host_of(hosts), signal.SIGKILL)
        until(lambda: run.totals.restarts == 1 and run.state is RunState.PAUSED)
        assert (run.generation, written(pipeline)) == (2, 3)
        run.resume()
        until(lambda: written(pipeline) == 7)
        (driver,) = hosts._drivers.values()
        assert hosted.memory_bytes
        assert run.stop(20)
        assert (run.state, run.error) == (RunState.STOPPED, None)
        until(lambda: driver.has_ended)
        driver._process.pid = os.getpid()  # the next process that gets its id
        assert hosted.memory_bytes is None


def test_a_flow_whose_process_gets_a_signal_is_started_again(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosts(pipeline))
        run.start()
        until(lambda: run.state is RunState.RUNNING)
        os.kill(host_of(hosts), signal.SIGTERM)
        until(lambda: run.totals.restarts == 1 and run.state is RunState.RUNNING)
        assert "host-stopped" in caplog.text
        assert run.stop(20)


def test_a_host_that_ends_at_once_is_a_failure_that_may_pass_and_says_how_it_ended(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with hosts_of(pipeline) as hosts:
        pipeline.__dict__["restart"] = Restart(strategy="none")
        run = Run(pipeline, hosts(pipeline))
        run.start()
        assert run.join(20)
        assert run.error is not None and run.error.code == "host-lost" and "status 1" in run.error.message


def test_a_host_that_cannot_be_started_is_a_failure_that_may_pass(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with hosts_of(pipeline) as hosts:
        pipeline.__dict__["restart"] = Restart(strategy="none")
        run = Run(pipeline, hosts(pipeline))
        run.start()
        assert run.join(20)
        assert run.error is not None and run.error.code == "host-not-started"


@pytest.mark.parametrize("of", ["socket", "thread"])
def test_what_keeps_a_host_from_being_started_leaves_none_and_may_pass(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    started: list[int] = []

    class Process(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            started.append(self.pid)

    def no_socket(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    class NoThread(threading.Thread):
        def start(self) -> None:
            if self.name == "onefold-reports":
                raise RuntimeError("can't start new thread")
            super().start()

    with hosts_of(pipeline) as hosts:
        pipeline.__dict__["restart"] = Restart(strategy="none")
        run = Run(pipeline, hosts(pipeline))
        monkeypatch.setattr("subprocess.Popen", Process)
        if of == "socket":
            monkeypatch.setattr("socket.socketpair", no_socket)
        else:
            monkeypatch.setattr("threading.Thread", NoThread)
        run.start()
        assert run.join(20)
    assert run.error is not None and run.error.code == "host-not-started"
    assert len(started) == (of == "thread") and not any(is_there(pid) for pid in started)


def test_a_host_that_a_signal_without_a_name_has_ended_is_started_again(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosts(pipeline))
        run.start()
        until(lambda: run.state is RunState.RUNNING)
        os.kill(host_of(hosts), signal.SIGRTMIN + 1)
        until(lambda: run.totals.restarts == 1 and run.state is RunState.RUNNING)
        assert f"was ended by signal {signal.SIGRTMIN + 1}" in caplog.text
        assert run.stop(20)


@pytest.fixture
def lingering(pipeline: Pipeline) -> Pipeline:
    """One whose file of functions starts a thread that does not end, in the host."""
    place = Path(pipeline.directory)
    (place / "functions.py").write_text(
        'import sys, threading, time\nif "onefold.daemon.hosting" in sys.orig_argv:\n'
        "    threading.Thread(target=time.sleep, args=(600,)).start()\ndef same(batch):\n    return batch\n"
    )
    file = place / "orders.toml"
    file.write_text(file.read_text().replace("[[sinks]]", '[[steps]]\nmap_batches = "functions.py:same"\n[[sinks]]'))
    return read(str(file))


@pytest.mark.parametrize("end_s", [0.2, 60.0], ids=["the-daemon-kills-it", "it-ends-itself"])
def test_a_host_whose_module_has_a_thread_that_does_not_end_ends(
    lingering: Pipeline, monkeypatch: pytest.MonkeyPatch, end_s: float
) -> None:
    monkeypatch.setattr("onefold.daemon.hosting.hosts._END_S", end_s)
    with hosts_of(lingering) as hosts:
        run = Run(lingering, hosts(lingering))
        run.start()
        until(lambda: run.state is RunState.RUNNING)
        group = host_of(hosts)
        assert run.stop(20)
        until(lambda: not is_there(group))


def command_of(pipeline: Pipeline, *options: str) -> list[str]:
    onefold = [sys.executable, "-c", "from onefold.cli.entry import main; main()", "run"]
    return [*onefold, str(Path(pipeline.directory) / "orders.toml"), "--listen", "none", *options]


def test_a_daemon_without_standard_streams_and_a_function_that_prints_do_not_meet_on_a_socket(
    pipeline: Pipeline,
) -> None:
    place = Path(pipeline.directory)
    (place / "functions.py").write_text(
        "def told(batch):\n    import os\n    os.write(1, b'told\\n')\n    return batch\n"
    )
    file = place / "orders.toml"
    file.write_text(file.read_text().replace("[[sinks]]", '[[steps]]\nmap_batches = "functions.py:told"\n[[sinks]]'))
    closed = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command_of(pipeline)]
    with subprocess.Popen(closed) as daemon:
        try:
            until(lambda: written(pipeline) == 3)
            daemon.terminate()
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()


def test_a_second_signal_while_the_hosts_end_kills_them(lingering: Pipeline) -> None:
    with subprocess.Popen(command_of(lingering, "--text-logs"), stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        try:
            until(lambda: written(lingering) == 3)
            daemon.terminate()
            for line in daemon.stderr:
                if "has ended" in line:
                    break
            time.sleep(1.5)
            daemon.terminate()
            assert daemon.wait(60) == Retriable.exit_code
        finally:
            daemon.kill()


def test_killed_hosts_leave_nothing_behind(pipeline: Pipeline) -> None:
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosts(pipeline))
        run.start()
        until(lambda: run.state is RunState.RUNNING)
        group = host_of(hosts)
        run.announce_stop()
        hosts.kill()
        assert run.join(20)
        until(lambda: not is_there(group))


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_file_that_somebody_is_writing_when_a_host_is_lost_is_waited_for(pipeline: Pipeline) -> None:
    path = Path(pipeline.named)
    whole = path.read_text()
    with hosts_of(pipeline) as hosts:
        pipeline.__dict__["restart"] = Restart(strategy="fixed_delay", delay_s=0.2)
        run = Run(pipeline, hosts(pipeline))
        run.start()
        until(lambda: run.state is RunState.RUNNING)
        path.write_text(whole[:50])
        os.kill(host_of(hosts), signal.SIGKILL)
        until(lambda: run.error is not None and run.error.code != "host-lost")
        assert str(path) in str(run.error) and not run.state.is_over
        path.write_text(whole)
        until(lambda: run.state is RunState.RUNNING)
        assert run.stop(20)


def test_a_file_with_another_checkpoint_is_not_run_there(pipeline: Pipeline) -> None:
    path = Path(pipeline.named)
    path.write_text(f'checkpoint = "elsewhere"\n{path.read_text()}')
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosts(pipeline))
        run.start()
        assert run.join(20)
        assert run.error is not None and run.error.code == "pipeline-changed"
    assert not (path.parent / "elsewhere").exists()


def test_what_flows_in_a_flow_on_the_engine_is_reported_with_its_graph(pipeline: Pipeline) -> None:
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosts(pipeline))
        run.start()
        until(lambda: [edge.rows for edge in run.hosted.traffic.edges()] == [3])
        (edge,) = run.hosted.traffic.edges()
        assert edge.target == "rows" and edge.bytes == 3 * 8
        until(lambda: [each.busy is not None for each in run.hosted.traffic.operators()] == [True, True])
        until(lambda: run.hosted.epochs.of(1) is not None)
        assert (steps := run.hosted.epochs.of(1)) is not None
        assert steps.prepare_s is not None and min(steps.known().values()) >= 0
        assert run.hosted.epochs.sums == steps.known() and steps.run_s + steps.prepare_s + steps.commit_s > 0
        os.kill(host_of(hosts), signal.SIGKILL)
        put(Path(pipeline.directory), 4)
        until(lambda: [edge.rows for edge in run.hosted.traffic.edges()] == [7])
        until(lambda: sum("generation 2" in line.message for line in run.hosted.lines) == 1)
        assert {line.level for line in run.hosted.lines} >= {"info"}, "what its hosts have logged"
        until(lambda: run.hosted.epochs.of(2) is not None)
        assert run.hosted.epochs.of(1) == steps and run.hosted.epochs.sums["run"] > steps.run_s, (
            "also when its host is another"
        )
        assert run.stop(20)


def test_the_state_that_an_operator_keeps_is_reported_after_each_snapshot_of_it(pipeline: Pipeline) -> None:
    place = Path(pipeline.directory)
    (place / "latest.py").write_text(
        "from onefold.flow import Flow\nfrom onefold.pipeline import Engine, Pipeline\n"
        "from onefold.sinks import SqlSink\nfrom onefold.sources import FileSource\n"
        f"source = FileSource('{place}/in', format='json', schema='id long', settle_s=0)\n"
        "def newest(kept, row):\n    return row\n"
        "flow = Flow('latest')\n"
        "rows = flow.source(source, uid='in').key_by('id').reduce(newest, uid='newest')\n"
        f"rows.sink(SqlSink('sqlite:///{place}/latest.db', 'rows', mode='upsert', key='id', order='onefold_epoch'))\n"
        f"latest = Pipeline(flow, runtime=Engine(), directory='{place}')\n"
    )
    latest = read(f"{place}/latest.py:latest")
    with hosts_of(latest) as hosts:
        run = Run(latest, hosts(latest))
        run.start()
        until(lambda: [each.state_entries for each in run.hosted.traffic.operators()] == [None, 3, None])
        until(lambda: (run.hosted.traffic.operators()[1].state_bytes or 0) > 0)
        until(lambda: [each.backpressured is None for each in run.hosted.traffic.operators()] == [False, True, True])
        put(place, 4)
        until(lambda: run.hosted.traffic.operators()[1].state_entries == 4)
        assert run.stop(20)


def test_the_watermark_of_an_operator_is_reported_with_the_rows_that_came_too_late(pipeline: Pipeline) -> None:
    place = Path(pipeline.directory)
    (place / "times").mkdir()
    (place / "minutes.py").write_text(
        "from onefold.flow import Flow, Tumbling, count, monotonic\nfrom onefold.pipeline import Engine, Pipeline\n"
        "from onefold.sinks import SqlSink\nfrom onefold.sources import FileSource\n"
        f"source = FileSource('{place}/times', format='json', schema='at timestamp', settle_s=0)\n"
        "flow = Flow('minutes')\n"
        "rows = flow.source(source, uid='in', watermarks=monotonic('at')).window(Tumbling('1 minute'))\n"
        f"rows.aggregate(uid='n', n=count()).sink(SqlSink('sqlite:///{place}/minutes.db', 'rows'))\n"
        f"minutes = Pipeline(flow, runtime=Engine(), directory='{place}')\n"
    )
    minutes = read(f"{place}/minutes.py:minutes")

    def come(minute: int) -> None:
        (place / f"{minute}.json").write_text(f'{{"at": "2026-01-01T00:{minute:02}:00Z"}}\n')
        (place / f"{minute}.json").rename(place / f"times/{minute}.json")  # whole, as a folder that is read asks for

    with hosts_of(minutes) as hosts:
        run = Run(minutes, hosts(minutes))
        come(30)
        run.start()
        until(lambda: [each.clock is None for each in run.hosted.traffic.operators()] == [True, False, True])
        at_us = 1_767_225_600_000_000 + 30 * 60_000_000
        until(lambda: (clock := run.hosted.traffic.operators()[1].clock) is not None and clock.us == at_us)
        come(3)
        until(lambda: (clock := run.hosted.traffic.operators()[1].clock) is not None and clock.late == 1)
        assert run.stop(20)


def test_a_flow_that_has_ended_by_itself_has_its_graph_and_all_that_flowed_in_it(pipeline: Pipeline) -> None:
    place = Path(pipeline.directory)
    (place / "once.py").write_text(
        "from onefold.flow import Flow\nfrom onefold.pipeline import Engine, Pipeline\n"
        "from onefold.sinks import SqlSink\nfrom onefold.sources import FileSource\n"
        f"source = FileSource('{place}/in', format='json', schema='id long', settle_s=0).bounded()\n"
        "flow = Flow('once')\n"
        f"flow.source(source, uid='in').sink(SqlSink('sqlite:///{place}/once.db', 'rows'))\n"
        f"once = Pipeline(flow, runtime=Engine(), directory='{place}')\n"
    )
    once = read(f"{place}/once.py:once")
    with hosts_of(once) as hosts:
        run = Run(once, hosts(once))
        run.start()
        assert run.join(20)
        assert (run.state, run.error) == (RunState.FINISHED, None)
        assert [(edge.rows, edge.rows_per_s) for edge in run.hosted.traffic.edges()] == [(3, None)]


def test_the_last_progress_outlives_a_host(pipeline: Pipeline) -> None:
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosts(pipeline))
        run.start()
        until(lambda: run.hosted.status.progress_at_s is not None)
        before = run.hosted.status.progress_at_s
        os.kill(host_of(hosts), signal.SIGKILL)
        until(lambda: run.totals.restarts == 1 and run.state is RunState.RUNNING)
        assert run.hosted.status.progress_at_s == before
        assert run.stop(20)


def test_a_host_that_is_not_understood_ends_and_its_pipeline_is_started_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hosts_of(pipeline) as hosts:
        run = Run(pipeline, hosted := hosts(pipeline))
        report, reported = hosted.report, threading.Event()

        def once(told: Report) -> None:
            if told.status.recovered is not None and not reported.is_set():
                reported.set()
                raise ValueError("a defect")
            report(told)

        monkeypatch.setattr(hosted, "report", once)
        run.start()
        until(lambda: run.totals.restarts == 1 and run.state is RunState.RUNNING)
        assert "is not understood" in caplog.text
        assert run.stop(20)
