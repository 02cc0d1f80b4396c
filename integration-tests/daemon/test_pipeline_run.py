"""`onefold run orders.toml` on real servers: stopped, killed, started twice, started again after failures."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.daemons import NOW, SQL, Start, is_whole, jvm_of, producing, rows, wait_for_rows, write
from harness.definitions import piped
from harness.support import AVAILABLE_NOW, Rig, failing_at, wait_until

from onefold.core import Fenced, Retriable
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.messages import Status, Totals
from onefold.daemon.hosting.traffic_rates import TrafficRates
from onefold.daemon.hosting.works import SparkWork, meaning
from onefold.daemon.pipeline_run import Run, RunState
from onefold.pipeline import Pipeline, Restart, Spark

pytestmark = [pytest.mark.servers, pytest.mark.slow]


ENGINE = 'runtime = "engine"'
FILTER = '[[steps]]\nfilter = "n >= 0"\n'


@pytest.mark.parametrize(
    ("tables", "top"), [("", ""), (SQL, ""), (FILTER, ""), (FILTER, ENGINE)], ids=["spark", "sql", "filter", "engine"]
)
def test_a_stop_under_load_ends_with_its_epoch_complete_and_a_killed_one_goes_on_exactly(
    rig: Rig, start: Start, tables: str, top: str
) -> None:
    path = write(rig, tables, top)
    chance = random.Random(17)
    with producing(rig):
        for attempt in range(3):
            daemon = start(path)
            wait_for_rows(rig, daemon, len(rows(rig)) + 1)
            time.sleep(chance.uniform(0, 1.5))
            if attempt == 1:
                daemon.kill()
                continue
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.wait() == 0, daemon.text()
            assert is_whole(rig)
    last = start(path)
    wait_for_rows(rig, last, len(rig.sent))
    last.process.send_signal(signal.SIGTERM)
    assert last.wait() == 0, last.text()
    assert rows(rig) == sorted(rig.sent)
    if top == ENGINE:
        return  # which tells of several epochs in one line
    epochs = [event for event in last.events() if event["logger"] == "onefold.epochs"]
    assert epochs
    assert {"pipeline", "generation", "epoch", "at", "level", "message"} <= {*epochs[0]}
    assert epochs[0]["pipeline"] == "orders"


@pytest.mark.parametrize("top", ["", ENGINE], ids=["spark", "engine"])
def test_of_two_at_once_one_wins_and_the_other_is_fenced_for_good(rig: Rig, start: Start, top: str) -> None:
    path = write(rig, top=top)
    with producing(rig):
        two = [start(path), start(path)]
        wait_until(lambda: any(daemon.process.poll() is not None for daemon in two), "one of them to end")
        fenced = next(daemon for daemon in two if daemon.process.poll() is not None)
        assert fenced.wait() == Fenced.exit_code, fenced.text()
        assert "not to be started again" in fenced.text()
    (winner,) = (daemon for daemon in two if daemon is not fenced)
    wait_for_rows(rig, winner, len(rig.sent))
    winner.process.send_signal(signal.SIGTERM)
    assert winner.wait() == 0, winner.text()
    assert rows(rig) == sorted(rig.sent)


def test_a_pipeline_whose_jvm_was_killed_goes_on_in_another_one(rig: Rig, start: Start) -> None:
    rig.put(100)
    daemon = start(write(rig))
    wait_for_rows(rig, daemon, 100)
    jvm = jvm_of(daemon)
    assert jvm is not None
    os.kill(jvm, signal.SIGKILL)
    rig.put(100)
    wait_for_rows(rig, daemon, 200)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()
    assert "onefold/cli/commands/run.py" not in daemon.text(), "no traceback but that of a thread of PySpark's own"
    assert [event["code"] for event in daemon.events() if "started again" in event["message"]] == ["jvm-gone"]
    assert rows(rig) == sorted(rig.sent)


def test_ctrl_c_ends_it_with_its_epoch_complete_and_0(rig: Rig, start: Start) -> None:
    """As a terminal sends it: to all processes of the group."""
    with producing(rig):
        daemon = start(write(rig))
        wait_for_rows(rig, daemon, 100)
        os.killpg(daemon.process.pid, signal.SIGINT)
        assert daemon.wait() == 0, daemon.text()
    assert is_whole(rig) and "Traceback" not in daemon.text()


def test_a_signal_to_all_that_it_has_started_ends_it_by_the_end_of_its_jvm_and_nothing_is_lost(
    rig: Rig, start: Start
) -> None:
    """As systemd sends it, unless it is told `KillMode=mixed`."""
    path = write(rig)
    with producing(rig):
        daemon = start(path)
        wait_for_rows(rig, daemon, 100)
        for each in daemon.members():
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGTERM)
        assert daemon.wait() in (0, Retriable.exit_code), daemon.text()
    assert "onefold/daemon" not in daemon.text(), "no traceback but that of a thread of PySpark's own"
    assert "stop_within_s" not in daemon.text()
    last = start(path)
    wait_for_rows(rig, last, len(rig.sent))
    last.stop()
    assert rows(rig) == sorted(rig.sent)


def test_a_signal_while_spark_starts_ends_the_process_as_one_later_does(rig: Rig, start: Start) -> None:
    daemon = start(write(rig))
    wait_until(lambda: jvm_of(daemon) is not None, "a JVM")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()
    assert "Traceback" not in daemon.text()


def test_what_was_there_at_the_start_is_written_and_the_process_ends(rig: Rig, start: Start) -> None:
    rig.put(500)
    done = start(write(rig, spark=NOW))
    assert done.wait() == 0, done.text()
    assert rows(rig) == sorted(rig.sent)


def test_wrong_files_end_at_once_with_one_line_and_their_exit_code(rig: Rig, start: Start) -> None:
    right = write(rig)
    for files, says in (
        ([write(rig, name="wrong", spark='every = "3"')], "spark has no key 'every'"),
        ([right, right], "pipeline 'orders' is named twice"),
        ([write(rig, name="missing", topic="nowhere")], "nowhere"),
    ):
        ended = start(*files, options=["--text-logs"])
        assert ended.wait() == 2, ended.text()
        assert says in ended.text()
        assert "Traceback" not in ended.text()


def pipeline(rig: Rig, **more: Any) -> Pipeline:
    options = {"checkpoint": rig.checkpoint(), "patience_s": 30.0, **more}
    return piped("orders", source=rig.source(at_most=100), sinks=[rig.sink()], **options)


def in_spark(query: Any) -> Callable[[Any], Any]:
    """What has Spark make its rows by this SELECT, or function."""
    if isinstance(query, str):
        return lambda rows: rows.spark_sql(query, schema="id long, n long")
    return lambda rows: rows.spark_dataframe(query, schema="id long, n long")


class InThisProcess:
    """What runs a pipeline on Spark for a daemon, without a host."""

    def __init__(self, pipeline: Pipeline, spark: Any) -> None:
        self.pipeline = pipeline
        self.work = SparkWork(pipeline, False, spark)

    @property
    def status(self) -> Status:
        return self.work.status

    @status.setter
    def status(self, _: Status) -> None:
        raise NotImplementedError

    @property
    def totals(self) -> Totals:
        return self.status.totals

    memory_bytes = None
    traffic, epochs, lines = TrafficRates(), EpochTimes(), ()

    def run(self, on_start: Callable[[], None], is_paused: bool) -> None:
        self.work.hold(is_paused)
        before_s, is_over = self.status.started_at_s, threading.Event()

        def watch() -> None:
            while not is_over.wait(0.01):
                if self.status.started_at_s not in (None, before_s):
                    on_start()
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            self.work.run()
        except Exception as error:
            raise meaning(self.pipeline.name, error) from error
        finally:
            is_over.set()

    def pause(self) -> None:
        self.work.hold(True)

    def resume(self) -> None:
        self.work.hold(False)

    def drain(self) -> None:
        self.work.drain()

    def close(self) -> None:
        self.work.close()


@contextmanager
def run(rig: Rig, wanted: Pipeline) -> Iterator[Run]:
    running = Run(wanted, InThisProcess(wanted, rig.spark))
    running.start()
    try:
        yield running
    finally:
        running.stop(60)


def test_a_paused_pipeline_begins_no_epoch_and_goes_on_where_it_was(rig: Rig) -> None:
    rig.put(300)
    with run(rig, pipeline(rig)) as running:
        wait_until(lambda: len(rows(rig)) == 300, "the first rows")
        running.pause()
        assert running.state is RunState.PAUSED
        rig.put(1000)
        time.sleep(3)
        assert len(rows(rig)) <= 400, "one epoch may have been under way"
        held = len(rows(rig))
        time.sleep(1)
        assert len(rows(rig)) == held
        running.resume()
        wait_until(lambda: len(rows(rig)) == 1300, "all rows")
        running.pause()
        assert running.stop(60), "a paused one, too"
    assert (running.state, running.error) == (RunState.STOPPED, None)
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def test_a_failure_that_may_pass_is_tried_again_within_bounds_and_another_one_is_not(rig: Rig, tmp_path: Path) -> None:
    rig.put(100)
    marker = tmp_path / "failed"

    def fails_once(df: object) -> object:
        if not marker.exists():
            marker.touch()
            raise Retriable("test", "the first start fails")
        return df

    restart = Restart(strategy="fixed_delay", delay_s=0.2)
    now = Spark(available_now=True)
    with run(rig, pipeline(rig, change=in_spark(fails_once), restart=restart, runtime=now)) as running:
        assert running.join(90)
    assert (running.state, running.totals.restarts, running.error) == (RunState.FINISHED, 1, None)
    assert rows(rig) == sorted(rig.sent)
    with run(rig, pipeline(rig, change=in_spark("SELECT nothing FROM source"), restart=restart)) as running:
        assert running.join(60)
    assert running.state is RunState.FAILED and running.totals.restarts == 0
    assert running.error is not None and running.error.code == "transform-sql-invalid"


def test_one_that_was_taken_over_while_it_waits_is_fenced_and_takes_nothing_back(rig: Rig) -> None:
    rig.put(100)
    successor = pipeline(rig).writer()

    calls = []

    def is_taken_over(df: object) -> object:
        calls.append(df)
        if len(calls) == 2:  # after a start's first check, which asks for no generation
            successor.recover()
            raise Retriable("test", "the store did not answer")
        return df

    restart = Restart(strategy="fixed_delay", delay_s=0.2)
    with run(rig, pipeline(rig, change=in_spark(is_taken_over), restart=restart)) as running:
        assert running.join(90)
    assert (running.state, running.totals.restarts) == (RunState.FENCED, 1)
    assert successor.facts().generation == 2, "the successor's still"
    successor.close()


def test_after_a_stop_the_same_writer_starts_its_query_again_and_it_writes_on(rig: Rig) -> None:
    rig.put(100)
    writer = rig.pipeline()
    query = writer.start(rig.spark, rig.checkpoint())
    assert writer.drain(query, 60)
    rig.put(100)
    query = writer.start(rig.spark, rig.checkpoint(), AVAILABLE_NOW)
    assert writer.await_termination(query, 60)
    writer.close()
    assert rows(rig) == sorted(rig.sent)


def test_a_stop_that_comes_too_late_says_so_and_the_next_start_resolves_what_was_begun(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(100)
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        assert go.wait(60)

    failing_at(monkeypatch, "after:Decide", wait_inside)
    with run(rig, pipeline(rig)) as running:
        assert inside.wait(60)
        assert not running.stop(0.5), "its epoch is decided, and not complete"
        go.set()
        assert running.stop(60)
    assert running.state is RunState.STOPPED
    assert is_whole(rig) and rows(rig) == sorted(rig.sent)


def test_a_first_start_into_kafka_makes_the_folder_of_its_store(
    rig: Rig, start: Start, kafka_topic: Callable[..., str]
) -> None:
    rig.put(100)
    path, out = write(rig, spark=NOW), kafka_topic(partitions=1)
    text = path.read_text()
    sink = f'kind = "kafka"\ntopic = "{out}"\nbootstrap_servers = "{rig.servers}"\n'
    path.write_text(text.replace(f'kind = "postgres"\nurl = "{rig.url}"\ntable = "rows"\n', sink))
    done = start(path)
    assert done.wait(240) == 0, done.text()  # the broker makes its topics of transactions first
    assert (rig.directory / ".onefold" / "orders.db").exists()
